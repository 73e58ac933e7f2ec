"""One peer: dm-acme's TensorFlow DQN, one process.

  python tests/benchmarks/peers/acme_dqn.py --seconds 20

`acme.agents.tf.dqn.DQN` as it comes (prioritized replay, n = 5), 64x64,
batch 256, 32 samples per insert.
"""

from __future__ import annotations

import sys

from acme import specs
from acme.agents.tf import dqn
import sonnet as snt

from murmuration.environment_loops import environments
from tests.benchmarks.peers import acme_parts
from tests.benchmarks.peers import window


def main() -> int:
  parser = window.parser(__doc__)
  parser.add_argument('--task', default='CartPole-v1')
  parser.add_argument('--batch_size', type=int, default=256)
  parser.add_argument('--samples_per_insert', type=float, default=32.0)
  args = parser.parse_args()
  view = window.Window(args.seconds)
  with window.scratch():
    acme_parts.use_this_reverb()
    environment = environments.make(args.task, seed=0)
    spec = specs.make_environment_spec(environment)
    counter = acme_parts.UpdateCounter()
    agent = dqn.DQN(
      environment_spec=spec,
      network=snt.Sequential(
        [snt.Flatten(), snt.nets.MLP([64, 64, spec.actions.num_values])]
      ),
      batch_size=args.batch_size,
      samples_per_insert=args.samples_per_insert,
      logger=counter,
      checkpoint=False,
    )
    acme_parts.run(agent, environment, counter, view)
  window.report(
    view.result(
      'acme_dqn',
      args.task,
      'one process, 1 environment',
      args.batch_size,
      acme_parts.PACKAGES,
    )
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
