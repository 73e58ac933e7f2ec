"""One peer: dm-acme's TensorFlow D4PG, one process.

  python tests/benchmarks/peers/acme_d4pg.py --task Hopper-v5

`acme.agents.tf.d4pg.D4PG` as it comes (uniform replay, n = 5, gradients
clipped), 256x256 without layer normalisation, 51 atoms, batch 256. Its own
samples per insert is 32, that is an update every 8 steps.
"""

from __future__ import annotations

import sys

from acme import specs
from acme.agents.tf import d4pg
from acme.tf import networks
import numpy as np
import sonnet as snt
import tensorflow as tf

from murmuration.environment_loops import environments
from tests.benchmarks.peers import acme_parts
from tests.benchmarks.peers import window

_ATOMS = 51
# Lowest and highest discounted return; what it is does not move the rates.
_SUPPORT = {'Pendulum-v1': (-1650.0, 0.0), 'Hopper-v5': (0.0, 400.0)}


def main() -> int:
  parser = window.parser(__doc__)
  parser.add_argument('--task', default='Pendulum-v1', choices=_SUPPORT)
  parser.add_argument('--batch_size', type=int, default=256)
  parser.add_argument('--samples_per_insert', type=float, default=32.0)
  args = parser.parse_args()
  view = window.Window(args.seconds)
  with window.scratch():
    acme_parts.use_this_reverb()
    environment = environments.make(args.task, seed=0)
    spec = specs.make_environment_spec(environment)
    counter = acme_parts.UpdateCounter()
    num_actions = int(np.prod(spec.actions.shape))
    agent = d4pg.D4PG(
      environment_spec=spec,
      policy_network=snt.Sequential(
        [snt.nets.MLP([256, 256, num_actions]), tf.tanh]
      ),
      critic_network=snt.Sequential(
        [
          networks.CriticMultiplexer(
            critic_network=snt.nets.MLP([256, 256], activate_final=True)
          ),
          networks.DiscreteValuedHead(*_SUPPORT[args.task], _ATOMS),
        ]
      ),
      batch_size=args.batch_size,
      samples_per_insert=args.samples_per_insert,
      logger=counter,
      checkpoint=False,
    )
    acme_parts.run(agent, environment, counter, view)
  window.report(
    view.result(
      'acme_d4pg',
      args.task,
      'one process, 1 environment',
      args.batch_size,
      acme_parts.PACKAGES,
    )
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
