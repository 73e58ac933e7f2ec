"""What stands in docs/results/: studies that `make results` runs.

  python launch/results.py --study=apex_cartpole

A new one is an entry here. Rules and words: docs/results/README.md.
"""

from __future__ import annotations

from launch import study_plan

_BOTH = (study_plan.STEPS, study_plan.SECONDS)


def _pso_dqn(
  name: str, environment: str, budget: int, threshold: float
) -> study_plan.Study:
  """Explorers with a supervisor against the agent alone, steps per agent."""
  swarm = study_plan.Variant(
    'run_swarm.py',
    (
      f'--config={name}',
      '--config.swarm.num_explorers=8',
      '--config.swarm.explorers_per_node=8',
    ),
  )
  return study_plan.Study(
    name=name,
    environment=environment,
    budget=budget,
    threshold=threshold,
    seeds=10,
    variants={
      'DQN': study_plan.Variant(
        'run_swarm.py', (f'--config={name}', '--baseline'), together=True
      ),
      'PSO-DQN': swarm,
      'PSO-DQN, c = 0': study_plan.Variant(
        swarm.script, (*swarm.flags, '--config.swarm.c_max=0.0')
      ),
    },
    baseline='DQN',
    contrasts=(
      study_plan.Contrast('The pull alone', 'PSO-DQN', 'PSO-DQN, c = 0'),
    ),
  )


def _apex_dqn(
  preset: str,
  environment: str,
  budget: int,
  threshold: float,
  goal: study_plan.Goal,
  network: tuple[str, ...] = (),
) -> study_plan.Study:
  """Actors and a prioritized replay against the agent alone.

  The plain DQN has the network of Ape-X and else its own preset, in which it
  makes an update for each environment step. 'DQN, 8 steps per update' samples
  each transition as often as Ape-X does (8 samples per insert, batches of 64).
  """
  plain = (f'--config={preset}', '--baseline', '--num_agents=1', *network)
  return study_plan.Study(
    name=f'apex_{preset}',
    environment=environment,
    budget=budget,
    threshold=threshold,
    seeds=goal.seeds,
    variants={
      'DQN': study_plan.Variant('run_swarm.py', plain),
      'DQN, 8 steps per update': study_plan.Variant(
        'run_swarm.py', (*plain, '--config.agent.env_steps_per_update=8')
      ),
      'Ape-X DQN': study_plan.Variant(
        'run_apex_dqn.py', (f'--config={preset}',)
      ),
    },
    baseline='DQN',
    x_axes=_BOTH,
    goals=(goal,),
    contrasts=(
      study_plan.Contrast(
        'At the same replay ratio', 'Ape-X DQN', 'DQN, 8 steps per update'
      ),
    ),
  )


_ALL = (
  _pso_dqn('cartpole', 'CartPole-v1', 30_000, 475.0),
  _pso_dqn('acrobot', 'Acrobot-v1', 50_000, -100.0),
  _apex_dqn(
    'cartpole',
    'CartPole-v1',
    50_000,
    475.0,
    study_plan.Goal('Ape-X DQN', 475.0, reached=10, seeds=10),
  ),
  _apex_dqn(
    'acrobot',
    'Acrobot-v1',
    150_000,
    -100.0,
    study_plan.Goal('Ape-X DQN', -90.0, reached=10, seeds=10),
  ),
  _apex_dqn(
    'lunar_lander',
    'LunarLander-v3',
    400_000,
    200.0,
    study_plan.Goal('Ape-X DQN', 200.0, reached=4, seeds=5),
    network=(
      '--config.agent.hidden_sizes=(128, 128)',
      '--config.agent.activation=relu',
    ),
  ),
)

STUDIES = {study.name: study for study in _ALL}
