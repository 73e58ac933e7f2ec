"""Studies of IMPALA, with and without its parts, and of IMPASS.

declared.py lists them with the others.
"""

from __future__ import annotations

from studies import plan as study_plan

_BOTH = (study_plan.STEPS, study_plan.SECONDS)
_CENTRAL = '--config.actors.inference=central'
_POSITION = 'examples.position_cartpole:PositionCartPole'


def _central() -> study_plan.Study:
  """One server that acts for all actors (SEED) against actors that do."""
  impala = 'impala:cartpole'
  return study_plan.Study(
    name='impala_central',
    environment='CartPole-v1',
    budget=200_000,
    threshold=475.0,
    seeds=10,
    variants={
      'IMPALA': study_plan.Variant((impala,)),
      'SEED V-trace': study_plan.Variant((impala, _CENTRAL)),
    },
    baseline='IMPALA',
    goals=(study_plan.Goal('SEED V-trace', 475.0, reached=10, seeds=10),),
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
  preset: str, environment: str, budget: int, d4pg_budget: int, threshold: float
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
    environment=environment,
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
    x_axes=_BOTH,
    contrasts=(
      study_plan.Contrast('The stack alone', 'IMPASS', 'IMPALA without stack'),
    ),
  )


STUDIES = (
  study_plan.solves(
    'impala_cartpole',
    'impala:cartpole',
    'IMPALA',
    'CartPole-v1',
    200_000,
    475.0,
    10,
  ),
  study_plan.solves(
    'impala_acrobot',
    'impala:acrobot',
    'IMPALA',
    'Acrobot-v1',
    400_000,
    -90.0,
    5,
  ),
  *(
    _impass(*numbers)
    for numbers in (
      ('hopper', 'Hopper-v5', 300_000, 30_000, 800.0),
      ('swimmer', 'Swimmer-v5', 300_000, 40_000, 30.0),
      ('humanoid_standup', 'HumanoidStandup-v5', 300_000, 40_000, 60_000.0),
      ('pusher', 'Pusher-v5', 300_000, 30_000, -50.0),
    )
  ),
  _central(),
  _memory(),
  _lag(),
  study_plan.solves(
    'impass_inverted_pendulum',
    'impala:inverted_pendulum',
    'IMPASS',
    'InvertedPendulum-v5',
    200_000,
    950.0,
    10,
  ),
  study_plan.solves(
    'impass_pendulum',
    'impala:pendulum',
    'IMPASS',
    'Pendulum-v1',
    500_000,
    -400.0,
    10,
    reached=8,
  ),
)
