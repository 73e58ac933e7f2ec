"""The studies of docs/results/, which `make results` runs.

  python studies/results.py --study=apex_cartpole

A new study is an entry here. Rules and terms: docs/results/README.md.
"""

from __future__ import annotations

from murmuration.studies import declared_impala
from murmuration.studies import declared_papers
from murmuration.studies import plan

_ALONE = '--topology=single_process'
# Smaller networks, as for the other tasks: with those of the Hopper-v5 preset,
# eight explorers take hours on two cores.
# The last two by trial of the plain agent (docs/agents/ddpg.md#results).
_SMALL = (
  'agent.policy_sizes=(64, 64)',
  'agent.critic_sizes=(64, 64)',
  'agent.batch_size=64',
  'pace.samples_per_insert=64.0',
  'agent.min_replay_size=1000',
  'agent.n_step=5',
  'agent.policy_learning_rate=1e-3',
)


def _swarm(
  name: str,
  label: str,
  agent: str,
  budget: int,
  threshold: float,
  seeds: int,
  words: tuple[str, ...] = (),
) -> plan.Study:
  """Eight explorers with a supervisor against the agent (AGENT:PRESET) alone.

  Steps are per agent: the explorers use eight times as many in total, and so
  does the best of eight independent agents. Steps of supervisors come on top;
  the table reports them.
  """
  swarm = (f'pso_{agent}', *words)
  swarm += ('swarm.num_explorers=8', 'swarm.explorers_per_node=8')
  pso, best = f'PSO-{label}', f'best of 8 {label}'
  return plan.compare(
    name,
    agent,
    budget,
    threshold,
    seeds,
    {
      label: plan.variant(agent, _ALONE, *words, together=True),
      best: plan.variant(agent, _ALONE, *words, best_of=8),
      pso: plan.variant(*swarm),
      f'{pso}, c = 0': plan.variant(*swarm, 'swarm.c_max=0.0'),
    },
    contrasts=(
      plan.Contrast('The pull alone', pso, f'{pso}, c = 0'),
      plan.Contrast('At equal steps of explorers', pso, best),
    ),
  )


def _explorers(
  name: str,
  agent: str,
  budget: int,
  threshold: float,
  seeds: int,
  counts: tuple[int, ...],
) -> plan.Study:
  """A swarm with different numbers of explorers: figure 4 of the paper."""
  variants = {
    f'{count} explorers': plan.variant(
      agent,
      f'swarm.num_explorers={count}',
      f'swarm.explorers_per_node={min(count, 16)}',
    )
    for count in counts
  }
  return plan.compare(name, agent, budget, threshold, seeds, variants)


def _apex_dqn(
  preset: str,
  budget: int,
  threshold: float,
  last: float,
  samples_per_insert: float,
  timed: bool = False,
) -> plan.Study:
  """Actors and a prioritized replay against the agent alone.

  The plain DQN has the network of Ape-X and otherwise its own preset. It
  samples each transition as often as Ape-X does.
  """
  pace = f'pace.samples_per_insert={samples_per_insert}'
  return plan.compare(
    f'apex_{preset}',
    f'apex_dqn:{preset}',
    budget,
    threshold,
    10,
    {
      # For a comparison by time, each seed runs alone, as with Ape-X.
      'DQN': plan.variant(f'dqn:{preset}', pace, together=not timed),
      'Ape-X DQN': plan.variant(f'apex_dqn:{preset}'),
    },
    timed=timed,
    goals=(plan.Goal('Ape-X DQN', last, reached=10, seeds=10),),
  )


def _apex_one_actor() -> plan.Study:
  """Ape-X with its actors and their environments against one of one.

  That one explores as the preset of DQN: a ladder of one rung is an epsilon of
  0.4 to the end. Two of the differences are taken back one at a time; what is
  left is that of sixteen environments in two processes.
  """
  apex, schedule = 'apex_dqn:cartpole', 'agent.exploration=schedule'
  single = 'actors.transitions_per_item=1'
  one = ('actors.num_actors=1', 'actors.envs_per_actor=1')
  return plan.compare(
    'apex_one_actor',
    apex,
    50_000,
    475.0,
    10,
    {
      'one actor': plan.variant(apex, *one, single, schedule),
      'Ape-X DQN': plan.variant(apex),
      'Ape-X, single transitions': plan.variant(apex, single),
      'Ape-X, one schedule': plan.variant(apex, schedule),
    },
    contrasts=(
      plan.Contrast(
        'Two transitions in an item', 'Ape-X DQN', 'Ape-X, single transitions'
      ),
      plan.Contrast('The ladder', 'Ape-X DQN', 'Ape-X, one schedule'),
    ),
  )


def _d4pg(preset: str, budget: int, threshold: float) -> plan.Study:
  """D4PG against DDPG, alone, that samples each transition as often.

  Each has its own preset otherwise.
  """
  ddpg = (f'ddpg:{preset}', _ALONE, 'pace.samples_per_insert=16.0')
  return plan.compare(
    f'd4pg_{preset}',
    f'd4pg:{preset}',
    budget,
    threshold,
    10,
    {
      'DDPG': plan.variant(*ddpg, together=True),
      'D4PG': plan.variant(f'd4pg:{preset}'),
    },
    goals=(plan.Goal('D4PG', threshold, reached=10, seeds=10),),
  )


def _sac(preset: str, budget: int, threshold: float, seeds: int) -> plan.Study:
  """SAC beside Stable-Baselines3's, with the same settings and steps.

  Budgets should be such that both are evaluated after the same steps, because
  the seeds of the evaluation episodes depend on them.
  """
  script = '../tests/benchmarks/peers/sb3_sac_study.py'
  return plan.compare(
    f'sac_{preset}',
    f'sac:{preset}',
    budget,
    threshold,
    seeds,
    {
      "Stable-Baselines3's SAC": plan.variant(f'sac:{preset}', script=script),
      'SAC': plan.variant(f'sac:{preset}', _ALONE),
    },
    goals=(plan.Goal('SAC', threshold, reached=seeds - 1, seeds=seeds),),
  )


_ALL = (
  _swarm('cartpole', 'DQN', 'dqn:cartpole', 30_000, 475.0, 10),
  _swarm('acrobot', 'DQN', 'dqn:acrobot', 50_000, -100.0, 10),
  _apex_dqn('cartpole', 50_000, 475.0, 475.0, 64.0, timed=True),
  _apex_dqn('acrobot', 150_000, -100.0, -90.0, 32.0),
  _apex_one_actor(),
  declared_impala.central(
    'apex_central', 'apex_dqn:cartpole', 50_000, 'Ape-X DQN', 'SEED Q'
  ),
  plan.solves(
    'apex_dqn:lunar_lander',
    'Ape-X DQN',
    400_000,
    200.0,
    seeds=5,
    reached=4,
    name='apex_lunar_lander',
  ),
  *declared_impala.STUDIES,
  _d4pg('pendulum', 30_000, -200.0),
  _d4pg('inverted_pendulum', 50_000, 1000.0),
  _d4pg('inverted_double_pendulum', 100_000, 9000.0),
  _d4pg('reacher', 200_000, -5.0),
  plan.solves('d4pg:hopper', 'D4PG', 300_000, 1_000.0, 5, 3),
  plan.solves('d4pg:swimmer', 'D4PG', 300_000, 30.0, 5, 3),
  plan.solves('d4pg:humanoid_standup', 'D4PG', 200_000, 60_000.0, 5, 3),
  *(
    _swarm(
      f'pso_{agent.lower()}_{preset}',
      agent,
      f'{agent.lower()}:{preset}',
      budget,
      threshold,
      seeds,
      _SMALL if preset == 'hopper' else (),
    )
    for agent, preset, budget, threshold, seeds in (
      ('DDPG', 'inverted_pendulum', 20_000, 950.0, 10),
      ('DDPG', 'inverted_double_pendulum', 30_000, 9100.0, 5),
      ('DDPG', 'reacher', 30_000, -7.0, 10),
      ('DDPG', 'hopper', 20_000, 1000.0, 10),
      ('PPO', 'cartpole', 50_000, 475.0, 10),
      ('PPO', 'pendulum', 80_000, -250.0, 10),
    )
  ),
  _explorers(
    'pso_ddpg_explorers',
    'pso_ddpg:inverted_pendulum',
    20_000,
    950.0,
    seeds=3,
    counts=(2, 8, 31),
  ),
  _explorers(
    'pso_dqn_explorers',
    'pso_dqn:cartpole',
    30_000,
    475.0,
    seeds=10,
    counts=(2, 8),
  ),
  plan.solves('a2c:cartpole', 'A2C', 200_000, 475.0, 10),
  plan.solves('a2c:acrobot', 'A2C', 400_000, -100.0, 10),
  plan.solves('ppo:cartpole', 'PPO', 100_000, 475.0, 10),
  plan.solves('ppo:pendulum', 'PPO', 150_000, -250.0, 10),
  plan.solves('ppo:inverted_pendulum', 'PPO', 100_000, 1000.0, 10),
  # Near published results after as many steps (docs/agents/ppo.md).
  plan.solves('ppo:hopper', 'PPO', 1_000_000, 2000.0, 5, 4),
  plan.solves('ppo:half_cheetah', 'PPO', 1_000_000, 3000.0, 5, 4),
  plan.solves('ppo:walker2d', 'PPO', 1_000_000, 2000.0, 5, 4),
  _sac('pendulum', 12_000, -200.0, 5),
  _sac('hopper', 60_000, 500.0, 3),
  *declared_papers.STUDIES,
)

STUDIES = {study.name: study for study in _ALL}
