"""Studies of gossip, the parameter server and evolution strategies.

declared.py lists them with the others.
"""

from __future__ import annotations

from murmuration.studies import plan as study_plan

_NETWORK = '--config.agent.hidden_sizes=(32, 32)'


def _gossip(
  preset: str, budget: int, threshold: float, a3c: tuple[str, ...] = ()
) -> study_plan.Study:
  """GALA and PALA against agents that do not mix, at equal total steps.

  Each has sixteen environments. A2C and the four agents that do not mix have
  GALA's settings, so that mixing is the only difference; A3C has its preset,
  and `a3c`: flags that give it the network of the others.
  """
  seeds = 10
  gala = f'gala_a2c:{preset}'
  alone = study_plan.Variant(
    (gala, '--topology=single_process', '--config.single.num_agents=4'),
    shared_by=4,
  )
  return study_plan.Study(
    name=f'gossip_{preset}',
    environment=study_plan.environment_of(gala),
    budget=budget,
    threshold=threshold,
    seeds=seeds,
    variants={
      'A2C': study_plan.Variant(
        (
          gala,
          '--topology=actor_learner',
          '--config.agent.batch_size=16',
          '--config.actors.num_actors=1',
          '--config.actors.envs_per_actor=16',
        )
      ),
      'mean of 4 A2C': alone,
      'GALA': study_plan.Variant((gala,), shared_by=4),
      'PALA': study_plan.Variant((f'pala_a2c:{preset}',), shared_by=4),
      'A3C': study_plan.Variant(
        (f'a3c:{preset}', f'--config.agent.anneal_env_steps={budget}', *a3c)
      ),
    },
    baseline='A2C',
    timed=True,
    goals=(
      study_plan.Goal('GALA', threshold, reached=seeds, seeds=seeds),
      study_plan.Goal('PALA', threshold, reached=seeds, seeds=seeds),
    ),
    contrasts=(
      study_plan.Contrast('Mixing alone', 'GALA', 'mean of 4 A2C'),
      study_plan.Contrast('PALA beside GALA', 'PALA', 'GALA'),
      # Declared after the runs of all three studies had been made.
      study_plan.Contrast('Mixing and means', 'PALA', 'mean of 4 A2C'),
    ),
  )


def _gorila(
  preset: str, budget: int, threshold: float, last: float
) -> study_plan.Study:
  """Gorila against DQN with its optimizer, gradients per step and replay."""
  gorila = f'gorila_dqn:{preset}'
  replay = {'cartpole': 80_000, 'acrobot': 200_000}[preset]  # of all bundles
  return study_plan.Study(
    name=f'gorila_{preset}',
    environment=study_plan.environment_of(gorila),
    budget=budget,
    threshold=threshold,
    seeds=5,
    variants={
      'DQN': study_plan.Variant(
        (
          gorila,
          '--topology=single_process',
          f'--config.agent.max_replay_size={replay}',
        )
      ),
      'Gorila DQN': study_plan.Variant((gorila,)),
    },
    baseline='DQN',
    goals=(study_plan.Goal('Gorila DQN', last, reached=4, seeds=5),),
  )


def _gorila_faults() -> study_plan.Study:
  """Gorila with a fault in one learner of four against Gorila without one.

  One learner's gradients are late by 50 updates, or it multiplies rewards by
  1000 for 100 batches half way. Its share of the steps counts all the same.
  """
  gorila = 'gorila_dqn:cartpole'
  faults = 'tests.faults.gorila_faults'
  return study_plan.Study(
    name='gorila_faults',
    environment='CartPole-v1',
    budget=100_000,
    threshold=475.0,
    seeds=5,
    variants={
      'Gorila DQN': study_plan.Variant((gorila,)),
      'one learner delayed': study_plan.Variant(
        (gorila, f'--topology={faults}:DelayedLearner')
      ),
      'one learner faulty': study_plan.Variant(
        (gorila, f'--topology={faults}:FaultyLearner')
      ),
    },
    baseline='Gorila DQN',
  )


def _gorila_others() -> study_plan.Study:
  """What the other learners learn beside one that is late by 50 updates.

  All its gradients are rejected, so its quarter of the steps is not counted.
  """
  three, delayed = '3 learners', '3, and one delayed'
  gorila = 'gorila_dqn:cartpole'
  return study_plan.Study(
    name='gorila_others',
    environment='CartPole-v1',
    budget=75_000,
    threshold=475.0,
    seeds=10,
    variants={
      three: study_plan.Variant((gorila, '--config.server.num_learners=3')),
      delayed: study_plan.Variant(
        (gorila, '--topology=tests.faults.gorila_faults:DelayedLearner'),
        counted=0.75,
      ),
    },
    baseline=three,
  )


def _evolution(
  preset: str, budget: int, threshold: float, seeds: int
) -> study_plan.Study:
  """Evolution strategies against the swarm and PPO, at equal total steps."""
  return study_plan.Study(
    name=f'evolution_{preset}',
    environment=study_plan.environment_of(f'es_mlp:{preset}'),
    budget=budget,
    threshold=threshold,
    seeds=seeds,
    variants={
      'ES': study_plan.Variant((f'es_mlp:{preset}', _NETWORK)),
      'PPO': study_plan.Variant((f'ppo:{preset}', _NETWORK)),
      'PSO-PPO': study_plan.Variant(
        (
          f'pso_ppo:{preset}',
          _NETWORK,
          '--config.swarm.num_explorers=8',
          '--config.swarm.explorers_per_node=8',
        ),
        shared_by=8,
      ),
    },
    baseline='ES',
    timed=True,
    goals=(study_plan.Goal('ES', threshold, reached=seeds, seeds=seeds),),
  )


def _workers() -> study_plan.Study:
  """A3C with four learners against one, at equal total steps."""
  budget, seeds = 300_000, 10
  annealed = f'--config.agent.anneal_env_steps={budget}'
  return study_plan.Study(
    name='a3c_workers',
    environment='CartPole-v1',
    budget=budget,
    threshold=475.0,
    seeds=seeds,
    variants={
      f'A3C, {learners}': study_plan.Variant(
        (
          'a3c:cartpole',
          annealed,
          f'--config.server.num_learners={learners}',
        )
      )
      for learners in (1, 4)
    },
    baseline='A3C, 1',
    goals=(study_plan.Goal('A3C, 4', 450.0, reached=8, seeds=seeds),),
  )


def _from_start(
  preset: str, budget: int, threshold: float, reached: int | None = None
) -> study_plan.Study:
  """Evolution strategies against the policy they start with.

  That is the same run with a learning rate of practically nothing.
  """
  es = f'es_mlp:{preset}'
  return study_plan.Study(
    name=f'es_mlp_{preset}',
    environment=study_plan.environment_of(es),
    budget=budget,
    threshold=threshold,
    seeds=10,
    variants={
      'start policy': study_plan.Variant(
        (
          es,
          '--config.evolution.learning_rate=1e-12',
          '--config.evolution.weight_decay=0.0',
        )
      ),
      'ES': study_plan.Variant((es,)),
    },
    baseline='start policy',
    goals=()
    if reached is None
    else (study_plan.Goal('ES', threshold, reached=reached, seeds=10),),
  )


STUDIES = (
  _gossip('cartpole', 200_000, 475.0),
  _gossip('acrobot', 400_000, -100.0),
  _gossip('hopper', 300_000, 1000.0, ('--config.agent.hidden_sizes=(64, 64)',)),
  _gorila('cartpole', 100_000, 475.0, 400.0),
  _gorila('acrobot', 200_000, -100.0, -130.0),
  _gorila_faults(),
  _gorila_others(),
  _workers(),
  _from_start('pendulum', 1_000_000, -300.0, 8),
  _from_start('reacher', 2_000_000, -6.0),
  _evolution('cartpole', 300_000, 475.0, 10),
  _evolution('inverted_pendulum', 500_000, 950.0, 5),
  *(
    study_plan.solves(f'{agent}:{preset}', label, budget, last, seeds, reached)
    for agent, label, preset, budget, last, seeds, reached in (
      ('a3c', 'A3C', 'cartpole', 300_000, 450.0, 10, 8),
      ('a3c', 'A3C', 'acrobot', 500_000, -120.0, 5, 4),
      ('a3c', 'A3C', 'inverted_pendulum', 400_000, 800.0, 10, 6),
      ('es_mlp', 'ES', 'acrobot', 1_000_000, -110.0, 10, 8),
      ('es_mlp', 'ES', 'swimmer', 2_000_000, 100.0, 5, 3),
    )
  ),
)
