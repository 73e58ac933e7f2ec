"""The studies of docs/results/, which `make results` runs.

  python studies/results.py --study=apex_cartpole

A new study is an entry here. Rules and terms: docs/results/README.md.
"""

from __future__ import annotations

from murmuration.studies import declared_impala
from murmuration.studies import declared_papers
from murmuration.studies import plan as study_plan

# Smaller networks, as for the other tasks: with those of the Hopper-v5 preset,
# eight explorers take hours on two cores.
# The last two by trial of the plain agent (docs/agents/ddpg.md#results).
_SMALL = (
  '--config.agent.policy_sizes=(64, 64)',
  '--config.agent.critic_sizes=(64, 64)',
  '--config.agent.batch_size=64',
  '--config.pace.samples_per_insert=64.0',
  '--config.agent.min_replay_size=1000',
  '--config.agent.n_step=5',
  '--config.agent.policy_learning_rate=1e-3',
)


def _swarm(
  name: str,
  label: str,
  agent: str,
  budget: int,
  threshold: float,
  seeds: int,
  flags: tuple[str, ...] = (),
) -> study_plan.Study:
  """Eight explorers with a supervisor against the agent (AGENT:PRESET) alone.

  Steps are per agent: the explorers use eight times as many in total, and so
  does the best of eight independent agents. Steps of supervisors come on top;
  the table reports them.
  """
  swarm = (
    f'pso_{agent}',
    *flags,
    '--config.swarm.num_explorers=8',
    '--config.swarm.explorers_per_node=8',
  )
  pso, best = f'PSO-{label}', f'best of 8 {label}'
  alone = (agent, '--topology=single_process', *flags)
  return study_plan.Study(
    name=name,
    environment=study_plan.environment_of(agent),
    budget=budget,
    threshold=threshold,
    seeds=seeds,
    variants={
      label: study_plan.Variant(alone, together=True),
      best: study_plan.Variant(alone, best_of=8),
      pso: study_plan.Variant(swarm),
      f'{pso}, c = 0': study_plan.Variant((*swarm, '--config.swarm.c_max=0.0')),
    },
    baseline=label,
    contrasts=(
      study_plan.Contrast('The pull alone', pso, f'{pso}, c = 0'),
      study_plan.Contrast('At equal steps of explorers', pso, best),
    ),
  )


def _explorers(
  name: str,
  agent: str,
  budget: int,
  threshold: float,
  seeds: int,
  counts: tuple[int, ...],
) -> study_plan.Study:
  """A swarm with different numbers of explorers: figure 4 of the paper."""
  return study_plan.Study(
    name=name,
    environment=study_plan.environment_of(agent),
    budget=budget,
    threshold=threshold,
    seeds=seeds,
    variants={
      f'{count} explorers': study_plan.Variant(
        (
          agent,
          f'--config.swarm.num_explorers={count}',
          f'--config.swarm.explorers_per_node={min(count, 16)}',
        )
      )
      for count in counts
    },
    baseline=f'{counts[0]} explorers',
  )


def _apex_dqn(
  preset: str,
  budget: int,
  threshold: float,
  goal: study_plan.Goal,
  samples_per_insert: float,
  timed: bool = False,
) -> study_plan.Study:
  """Actors and a prioritized replay against the agent alone.

  The plain DQN has the network of Ape-X and otherwise its own preset. It
  samples each transition as often as Ape-X does.
  """
  plain = (
    f'dqn:{preset}',
    f'--config.pace.samples_per_insert={samples_per_insert}',
  )
  return study_plan.Study(
    name=f'apex_{preset}',
    environment=study_plan.environment_of(f'apex_dqn:{preset}'),
    budget=budget,
    threshold=threshold,
    seeds=goal.seeds,
    variants={
      # For a comparison by time, each seed runs alone, as with Ape-X.
      'DQN': study_plan.Variant(plain, together=not timed),
      'Ape-X DQN': study_plan.Variant((f'apex_dqn:{preset}',)),
    },
    baseline='DQN',
    timed=timed,
    goals=(goal,),
  )


def _apex_one_actor() -> study_plan.Study:
  """Ape-X with its actors and their environments against one of one.

  That one explores as the preset of DQN: a ladder of one rung is an epsilon of
  0.4 to the end. Two of the differences are taken back one at a time; what is
  left is that of sixteen environments in two processes.
  """
  apex = 'apex_dqn:cartpole'
  one = (
    '--config.actors.num_actors=1',
    '--config.actors.envs_per_actor=1',
    '--config.actors.transitions_per_item=1',
    '--config.agent.exploration=schedule',
  )
  return study_plan.Study(
    name='apex_one_actor',
    environment='CartPole-v1',
    budget=50_000,
    threshold=475.0,
    seeds=10,
    variants={
      'one actor': study_plan.Variant((apex, *one)),
      'Ape-X DQN': study_plan.Variant((apex,)),
      'Ape-X, single transitions': study_plan.Variant(
        (apex, '--config.actors.transitions_per_item=1')
      ),
      'Ape-X, one schedule': study_plan.Variant(
        (apex, '--config.agent.exploration=schedule')
      ),
    },
    baseline='one actor',
    contrasts=(
      study_plan.Contrast(
        'Two transitions in an item', 'Ape-X DQN', 'Ape-X, single transitions'
      ),
      study_plan.Contrast('The ladder', 'Ape-X DQN', 'Ape-X, one schedule'),
    ),
  )


def _d4pg(preset: str, budget: int, threshold: float) -> study_plan.Study:
  """D4PG against DDPG, alone, that samples each transition as often.

  Each has its own preset otherwise.
  """
  ddpg = (
    f'ddpg:{preset}',
    '--topology=single_process',
    '--config.pace.samples_per_insert=16.0',
  )
  return study_plan.Study(
    name=f'd4pg_{preset}',
    environment=study_plan.environment_of(f'd4pg:{preset}'),
    budget=budget,
    threshold=threshold,
    seeds=10,
    variants={
      'DDPG': study_plan.Variant(ddpg, together=True),
      'D4PG': study_plan.Variant((f'd4pg:{preset}',)),
    },
    baseline='DDPG',
    goals=(study_plan.Goal('D4PG', threshold, reached=10, seeds=10),),
  )


def _sac(
  preset: str, budget: int, threshold: float, seeds: int
) -> study_plan.Study:
  """SAC beside Stable-Baselines3's, with the same settings and steps.

  Budgets should be such that both are evaluated after the same steps, because
  the seeds of the evaluation episodes depend on them.
  """
  own = (f'sac:{preset}',)
  return study_plan.Study(
    name=f'sac_{preset}',
    environment=study_plan.environment_of(*own),
    budget=budget,
    threshold=threshold,
    seeds=seeds,
    variants={
      "Stable-Baselines3's SAC": study_plan.Variant(
        own, script='../tests/benchmarks/peers/sb3_sac_study.py'
      ),
      'SAC': study_plan.Variant((*own, '--topology=single_process')),
    },
    baseline="Stable-Baselines3's SAC",
    goals=(study_plan.Goal('SAC', threshold, reached=seeds - 1, seeds=seeds),),
  )


_ALL = (
  _swarm('cartpole', 'DQN', 'dqn:cartpole', 30_000, 475.0, 10),
  _swarm('acrobot', 'DQN', 'dqn:acrobot', 50_000, -100.0, 10),
  _apex_dqn(
    'cartpole',
    50_000,
    475.0,
    study_plan.Goal('Ape-X DQN', 475.0, reached=10, seeds=10),
    samples_per_insert=64.0,
    timed=True,
  ),
  _apex_dqn(
    'acrobot',
    150_000,
    -100.0,
    study_plan.Goal('Ape-X DQN', -90.0, reached=10, seeds=10),
    samples_per_insert=32.0,
  ),
  _apex_one_actor(),
  declared_impala.central(
    'apex_central', 'apex_dqn:cartpole', 50_000, 'Ape-X DQN', 'SEED Q'
  ),
  study_plan.solves(
    'apex_dqn:lunar_lander',
    'Ape-X DQN',
    400_000,
    200.0,
    seeds=5,
    reached=4,
    name='apex_lunar_lander',
  ),
  *declared_impala.STUDIES,
  *(
    _d4pg(*numbers)
    for numbers in (
      ('pendulum', 30_000, -200.0),
      ('inverted_pendulum', 50_000, 1000.0),
      ('inverted_double_pendulum', 100_000, 9000.0),
      ('reacher', 200_000, -5.0),
    )
  ),
  *(
    study_plan.solves(f'd4pg:{preset}', 'D4PG', budget, threshold, 5, reached=3)
    for preset, budget, threshold in (
      ('hopper', 300_000, 1_000.0),
      ('swimmer', 300_000, 30.0),
      ('humanoid_standup', 200_000, 60_000.0),
    )
  ),
  *(
    _swarm(
      f'pso_{agent.lower()}_{preset}',
      agent,
      f'{agent.lower()}:{preset}',
      budget,
      threshold,
      5 if preset == 'inverted_double_pendulum' else 10,
      _SMALL if preset == 'hopper' else (),
    )
    for agent, preset, budget, threshold in (
      ('DDPG', 'inverted_pendulum', 20_000, 950.0),
      ('DDPG', 'inverted_double_pendulum', 30_000, 9100.0),
      ('DDPG', 'reacher', 30_000, -7.0),
      ('DDPG', 'hopper', 20_000, 1000.0),
      ('PPO', 'cartpole', 50_000, 475.0),
      ('PPO', 'pendulum', 80_000, -250.0),
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
  study_plan.solves('a2c:cartpole', 'A2C', 200_000, 475.0, 10),
  study_plan.solves('a2c:acrobot', 'A2C', 400_000, -100.0, 10),
  *(
    study_plan.solves(f'ppo:{preset}', 'PPO', budget, last, seeds, reached)
    for preset, budget, last, seeds, reached in (
      ('cartpole', 100_000, 475.0, 10, 10),
      ('pendulum', 150_000, -250.0, 10, 10),
      ('inverted_pendulum', 100_000, 1000.0, 10, 10),
      # Near published results after as many steps (docs/agents/ppo.md).
      ('hopper', 1_000_000, 2000.0, 5, 4),
      ('half_cheetah', 1_000_000, 3000.0, 5, 4),
      ('walker2d', 1_000_000, 2000.0, 5, 4),
    )
  ),
  _sac('pendulum', 12_000, -200.0, 5),
  _sac('hopper', 60_000, 500.0, 3),
  *declared_papers.STUDIES,
)

STUDIES = {study.name: study for study in _ALL}
