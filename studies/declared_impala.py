"""Studies of IMPALA, with and without its parts, and of IMPASS.

declared.py lists them with the others.
"""

from __future__ import annotations

from murmuration.studies import plan

_CENTRAL = 'actors.inference=central'
_POSITION = 'examples.position_cartpole:PositionCartPole'


def central(
  name: str,
  agent: str,
  budget: int,
  label: str,
  served: str,
  goals: tuple[plan.Goal, ...] = (),
) -> plan.Study:
  """One server that acts for all actors (SEED) against actors that do."""
  variants = {
    label: plan.variant(agent),
    served: plan.variant(agent, _CENTRAL),
  }
  return plan.compare(name, agent, budget, 475.0, 10, variants, goals=goals)


def _memory() -> plan.Study:
  """With and without an LSTM, where observations lack the velocities."""
  own = ('impala:cartpole', f'environment={_POSITION}')
  lstm = (*own, 'agent.lstm_size=64')
  return plan.Study(
    'impala_position_cartpole',
    _POSITION,
    200_000,
    475.0,
    10,
    {
      'feed-forward, central': plan.variant(*own, _CENTRAL),
      'LSTM, central': plan.variant(*lstm, _CENTRAL),
      'LSTM': plan.variant(*lstm),
      # In trials its parameters were 18 to 30 updates old where they acted, and
      # 10 to 14 with the server.
      'LSTM, short queue': plan.variant(*lstm, 'actors.queue_batches=1'),
    },
    contrasts=(
      plan.Contrast('The server alone', 'LSTM, central', 'LSTM'),
      plan.Contrast('The queue alone', 'LSTM, short queue', 'LSTM'),
    ),
  )


def _lag() -> plan.Study:
  """V-trace against all rho and c of 1, with parameters that are old.

  Actors fetch parameters so seldom that these are 20, and 40, updates old in
  the mean where they act: two actors make 160 steps, those of an update, in 80
  of their own. What a block waits in the queue comes on top.
  """
  agent = 'impala:cartpole'
  return plan.compare(
    'impala_lag',
    agent,
    200_000,
    475.0,
    10,
    {
      f'{label}, lag {lag}': plan.variant(
        agent,
        f'agent.correction={correction}',
        f'actors.update_period={2 * 80 * lag}',
      )
      for lag in (20, 40)
      for label, correction in (('V-trace', 'vtrace'), ('rho = c = 1', 'none'))
    },
    baseline='rho = c = 1, lag 20',
    contrasts=(
      plan.Contrast(
        'V-trace at lag 40', 'V-trace, lag 40', 'rho = c = 1, lag 40'
      ),
    ),
  )


def _impass(
  preset: str, budget: int, d4pg_budget: int, threshold: float
) -> plan.Study:
  """IMPASS against the same agent without its stack, and against D4PG.

  D4PG learns more from a step but takes longer for it. Its budget is about what
  fits into the time of the others.
  """
  own = (f'impala:{preset}', f'agent.anneal_env_steps={budget}')
  return plan.compare(
    f'impass_{preset}',
    own[0],
    budget,
    threshold,
    5,
    {
      'IMPASS': plan.variant(*own),
      'IMPALA without stack': plan.variant(*own, 'agent.stack=1'),
      'D4PG': plan.variant(f'd4pg:{preset}', budget=d4pg_budget),
    },
    timed=True,
    contrasts=(
      plan.Contrast('The stack alone', 'IMPASS', 'IMPALA without stack'),
    ),
  )


def _actors() -> plan.Study:
  """IMPASS with 2 and 8 actors, of as many environments in all, and of 8 each.

  What is learned from a step is not to depend on their number.
  """
  own, eight = 'impala:inverted_pendulum', 'actors.num_actors=8'
  return plan.compare(
    'impass_actors',
    own,
    200_000,
    950.0,
    10,
    {
      '2 actors of 8': plan.variant(own),
      '8 actors of 2': plan.variant(own, eight, 'actors.envs_per_actor=2'),
      '8 actors of 8': plan.variant(own, eight),
    },
  )


def _solves(preset: str, budget: int, last: float, reached: int) -> plan.Study:
  cell, name = f'impala:{preset}', f'impass_{preset}'
  return plan.solves(cell, 'IMPASS', budget, last, 10, reached, name)


STUDIES = (
  plan.solves('impala:cartpole', 'IMPALA', 200_000, 475.0, 10),
  plan.solves('impala:acrobot', 'IMPALA', 400_000, -90.0, 10),
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
    (plan.Goal('SEED V-trace', 475.0, reached=10, seeds=10),),
  ),
  _memory(),
  _lag(),
  _actors(),
  _solves('inverted_pendulum', 200_000, 950.0, 10),
  _solves('pendulum', 500_000, -400.0, 8),
)
