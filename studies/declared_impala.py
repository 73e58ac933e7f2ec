"""Studies of IMPALA, with and without its parts, and of IMPASS.

declared.py lists them with the others.
"""

from __future__ import annotations

from murmuration.studies import plan as study_plan

_CENTRAL = '--config.actors.inference=central'
_POSITION = 'examples.position_cartpole:PositionCartPole'


def central(
  name: str,
  agent: str,
  budget: int,
  label: str,
  served: str,
  goals: tuple[study_plan.Goal, ...] = (),
) -> study_plan.Study:
  """One server that acts for all actors (SEED) against actors that do."""
  return study_plan.Study(
    name=name,
    environment='CartPole-v1',
    budget=budget,
    threshold=475.0,
    seeds=10,
    variants={
      label: study_plan.Variant((agent,)),
      served: study_plan.Variant((agent, _CENTRAL)),
    },
    baseline=label,
    goals=goals,
  )


def _memory() -> study_plan.Study:
  """With and without an LSTM, where observations lack the velocities."""
  own = ('impala:cartpole', f'--config.environment={_POSITION}')
  lstm = (*own, '--config.agent.lstm_size=64')
  return study_plan.Study(
    name='impala_position_cartpole',
    environment=_POSITION,
    budget=200_000,
    threshold=475.0,
    seeds=10,
    variants={
      'feed-forward, central': study_plan.Variant((*own, _CENTRAL)),
      'LSTM, central': study_plan.Variant((*lstm, _CENTRAL)),
      'LSTM': study_plan.Variant(lstm),
      # In trials its parameters were 18 to 30 updates old where they acted, and
      # 10 to 14 with the server.
      'LSTM, short queue': study_plan.Variant(
        (*lstm, '--config.actors.queue_batches=1')
      ),
    },
    baseline='feed-forward, central',
    contrasts=(
      study_plan.Contrast('The server alone', 'LSTM, central', 'LSTM'),
      study_plan.Contrast('The queue alone', 'LSTM, short queue', 'LSTM'),
    ),
  )


def _lag() -> study_plan.Study:
  """V-trace against all rho and c of 1, with parameters that are old.

  Actors fetch parameters so seldom that these are 20, and 40, updates old in
  the mean where they act: two actors make 160 steps, those of an update, in 80
  of their own. What a block waits in the queue comes on top.
  """
  weights = {'V-trace': 'vtrace', 'rho = c = 1': 'none'}
  return study_plan.Study(
    name='impala_lag',
    environment='CartPole-v1',
    budget=200_000,
    threshold=475.0,
    seeds=10,
    variants={
      f'{label}, lag {lag}': study_plan.Variant(
        (
          'impala:cartpole',
          f'--config.agent.correction={correction}',
          f'--config.actors.update_period={2 * 80 * lag}',
        )
      )
      for lag in (20, 40)
      for label, correction in weights.items()
    },
    baseline='rho = c = 1, lag 20',
    contrasts=(
      study_plan.Contrast(
        'V-trace at lag 40', 'V-trace, lag 40', 'rho = c = 1, lag 40'
      ),
    ),
  )


def _impass(
  preset: str, budget: int, d4pg_budget: int, threshold: float
) -> study_plan.Study:
  """IMPASS against the same agent without its stack, and against D4PG.

  D4PG learns more from a step but takes longer for it. Its budget is about what
  fits into the time of the others.
  """
  own = (
    f'impala:{preset}',
    f'--config.agent.anneal_env_steps={budget}',
  )
  return study_plan.Study(
    name=f'impass_{preset}',
    environment=study_plan.environment_of(f'impala:{preset}'),
    budget=budget,
    threshold=threshold,
    seeds=5,
    variants={
      'IMPASS': study_plan.Variant(own),
      'IMPALA without stack': study_plan.Variant(
        (*own, '--config.agent.stack=1')
      ),
      'D4PG': study_plan.Variant((f'd4pg:{preset}',), budget=d4pg_budget),
    },
    baseline='IMPASS',
    timed=True,
    contrasts=(
      study_plan.Contrast('The stack alone', 'IMPASS', 'IMPALA without stack'),
    ),
  )


def _actors() -> study_plan.Study:
  """IMPASS with 2 and 8 actors, of as many environments in all, and of 8 each.

  What is learned from a step is not to depend on their number.
  """
  own = ('impala:inverted_pendulum',)
  return study_plan.Study(
    name='impass_actors',
    environment=study_plan.environment_of(own[0]),
    budget=200_000,
    threshold=950.0,
    seeds=10,
    variants={
      '2 actors of 8': study_plan.Variant(own),
      '8 actors of 2': study_plan.Variant(
        (
          *own,
          '--config.actors.num_actors=8',
          '--config.actors.envs_per_actor=2',
        )
      ),
      '8 actors of 8': study_plan.Variant(
        (*own, '--config.actors.num_actors=8')
      ),
    },
    baseline='2 actors of 8',
  )


STUDIES = (
  study_plan.solves('impala:cartpole', 'IMPALA', 200_000, 475.0, 10),
  study_plan.solves('impala:acrobot', 'IMPALA', 400_000, -90.0, 10),
  _impass('hopper', 300_000, 30_000, 800.0),
  _impass('swimmer', 300_000, 40_000, 30.0),
  _impass('humanoid_standup', 300_000, 40_000, 60_000.0),
  _impass('pusher', 300_000, 30_000, -50.0),
  central(
    'impala_central',
    'impala:cartpole',
    200_000,
    'IMPALA',
    'SEED V-trace',
    (study_plan.Goal('SEED V-trace', 475.0, reached=10, seeds=10),),
  ),
  _memory(),
  _lag(),
  _actors(),
  *(
    study_plan.solves(
      f'impala:{preset}',
      'IMPASS',
      budget,
      last,
      10,
      reached,
      f'impass_{preset}',
    )
    for preset, budget, last, reached in (
      ('inverted_pendulum', 200_000, 950.0, 10),
      ('pendulum', 500_000, -400.0, 8),
    )
  ),
)
