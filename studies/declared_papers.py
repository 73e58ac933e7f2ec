"""Studies of gossip, the parameter server and evolution strategies.

declared.py lists them with the others.
"""

from __future__ import annotations

from murmuration.studies import plan

_NETWORK = 'agent.hidden_sizes=(32, 32)'


def _gossip(
  preset: str, budget: int, threshold: float, *a3c: str
) -> plan.Study:
  """GALA and PALA against agents that do not mix, at equal total steps.

  Each has sixteen environments. A2C and the four agents that do not mix have
  GALA's settings, so that mixing is the only difference; A3C has its preset,
  and `a3c`: what gives it the network of the others.
  """
  gala, alone = f'gala_a2c:{preset}', 'mean of 4 A2C'
  one_actor = ('actors.num_actors=1', 'actors.envs_per_actor=16')
  return plan.compare(
    f'gossip_{preset}',
    gala,
    budget,
    threshold,
    10,
    {
      'A2C': plan.variant(
        gala, '--topology=actor_learner', 'agent.batch_size=16', *one_actor
      ),
      alone: plan.variant(
        gala,
        '--topology=single_process',
        'single.num_agents=4',
        shared_by=4,
      ),
      'GALA': plan.variant(gala, shared_by=4),
      'PALA': plan.variant(f'pala_a2c:{preset}', shared_by=4),
      'A3C': plan.variant(
        f'a3c:{preset}', f'agent.anneal_env_steps={budget}', *a3c
      ),
    },
    timed=True,
    goals=(
      plan.Goal('GALA', threshold, reached=10, seeds=10),
      plan.Goal('PALA', threshold, reached=10, seeds=10),
    ),
    contrasts=(
      plan.Contrast('Mixing alone', 'GALA', alone),
      plan.Contrast('PALA beside GALA', 'PALA', 'GALA'),
      # Declared after the runs of all three studies had been made.
      plan.Contrast('Mixing and means', 'PALA', alone),
    ),
  )


def _gorila(
  preset: str, budget: int, threshold: float, last: float, replay: int
) -> plan.Study:
  """Gorila against DQN with its optimizer, gradients per step and replay.

  `replay` is the size of that of all bundles.
  """
  gorila = f'gorila_dqn:{preset}'
  alone = '--topology=single_process', f'agent.max_replay_size={replay}'
  return plan.compare(
    f'gorila_{preset}',
    gorila,
    budget,
    threshold,
    5,
    {
      'DQN': plan.variant(gorila, *alone),
      'Gorila DQN': plan.variant(gorila),
    },
    goals=(plan.Goal('Gorila DQN', last, reached=4, seeds=5),),
  )


_GORILA = 'gorila_dqn:cartpole'
_DELAYED = '--topology=tests.faults.gorila_faults:DelayedLearner'
_FAULTY = '--topology=tests.faults.gorila_faults:FaultyLearner'


def _gorila_faults() -> plan.Study:
  """Gorila with a fault in one learner of four against Gorila without one.

  One learner's gradients are late by 50 updates, or it multiplies rewards by
  1000 for 100 batches half way. Its share of the steps counts all the same.
  """
  variants = {
    'Gorila DQN': plan.variant(_GORILA),
    'one learner delayed': plan.variant(_GORILA, _DELAYED),
    'one learner faulty': plan.variant(_GORILA, _FAULTY),
  }
  return plan.compare('gorila_faults', _GORILA, 100_000, 475.0, 5, variants)


def _gorila_others() -> plan.Study:
  """What the other learners learn beside one that is late by 50 updates.

  All its gradients are rejected, so its quarter of the steps is not counted.
  """
  variants = {
    '3 learners': plan.variant(_GORILA, 'server.num_learners=3'),
    '3, and one delayed': plan.variant(_GORILA, _DELAYED, counted=0.75),
  }
  return plan.compare('gorila_others', _GORILA, 75_000, 475.0, 10, variants)


def _evolution(
  preset: str, budget: int, threshold: float, seeds: int
) -> plan.Study:
  """Evolution strategies against the swarm and PPO, at equal total steps."""
  eight = ('swarm.num_explorers=8', 'swarm.explorers_per_node=8')
  return plan.compare(
    f'evolution_{preset}',
    f'es_mlp:{preset}',
    budget,
    threshold,
    seeds,
    {
      'ES': plan.variant(f'es_mlp:{preset}', _NETWORK),
      'PPO': plan.variant(f'ppo:{preset}', _NETWORK),
      'PSO-PPO': plan.variant(
        f'pso_ppo:{preset}', _NETWORK, *eight, shared_by=8
      ),
    },
    timed=True,
    goals=(plan.Goal('ES', threshold, reached=seeds, seeds=seeds),),
  )


def _workers() -> plan.Study:
  """A3C with four learners against one, at equal total steps."""
  a3c, annealed = 'a3c:cartpole', 'agent.anneal_env_steps=300000'
  return plan.compare(
    'a3c_workers',
    a3c,
    300_000,
    475.0,
    10,
    {
      'A3C, 1': plan.variant(a3c, annealed, 'server.num_learners=1'),
      'A3C, 4': plan.variant(a3c, annealed, 'server.num_learners=4'),
    },
    goals=(plan.Goal('A3C, 4', 450.0, reached=8, seeds=10),),
  )


def _from_start(
  preset: str, budget: int, threshold: float, *goals: plan.Goal
) -> plan.Study:
  """Evolution strategies against the policy they start with.

  That is the same run with a learning rate of practically nothing.
  """
  es = f'es_mlp:{preset}'
  nothing = 'evolution.learning_rate=1e-12', 'evolution.weight_decay=0.0'
  variants = {
    'start policy': plan.variant(es, *nothing),
    'ES': plan.variant(es),
  }
  return plan.compare(
    f'es_mlp_{preset}', es, budget, threshold, 10, variants, goals=goals
  )


STUDIES = (
  _gossip('cartpole', 200_000, 475.0),
  _gossip('acrobot', 400_000, -100.0),
  _gossip('hopper', 300_000, 1000.0, 'agent.hidden_sizes=(64, 64)'),
  _gorila('cartpole', 100_000, 475.0, 400.0, replay=80_000),
  _gorila('acrobot', 200_000, -100.0, -130.0, replay=200_000),
  _gorila_faults(),
  _gorila_others(),
  _workers(),
  _from_start(
    'pendulum', 1_000_000, -300.0, plan.Goal('ES', -300.0, reached=8, seeds=10)
  ),
  _from_start('reacher', 2_000_000, -6.0),
  _evolution('cartpole', 300_000, 475.0, 10),
  _evolution('inverted_pendulum', 500_000, 950.0, 5),
  plan.solves('a3c:cartpole', 'A3C', 300_000, 450.0, 10, 8),
  plan.solves('a3c:acrobot', 'A3C', 500_000, -120.0, 5, 4),
  plan.solves('a3c:inverted_pendulum', 'A3C', 400_000, 800.0, 10, 6),
  plan.solves('es_mlp:acrobot', 'ES', 1_000_000, -110.0, 10, 8),
  plan.solves('es_mlp:swimmer', 'ES', 2_000_000, 100.0, 5, 3),
)
