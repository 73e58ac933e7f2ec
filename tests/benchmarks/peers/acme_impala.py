"""One peer: dm-acme's TensorFlow IMPALA, in one process or as a program.

  python tests/benchmarks/peers/acme_impala.py              # one process
  python tests/benchmarks/peers/acme_impala.py --actors 2   # local_mp

64x64 without memory, T = 20, B = 16, each sequence used once; assembled from
Acme's actor, adder, dataset and learner. With --actors N they are nodes that
Launchpad's local_mp starts: Reverb, the learner, N actors.

Acme 0.4.0 ships no distributed program for IMPALA. Its one-process agent,
`acme.agents.tf.impala.IMPALA`, cannot be the peer: it learns when a batch waits
in the queue, but the readers of its dataset empty the queue into buffers of
their own, and no second update came within 11,000 steps. Here there is one
reader, and the learner steps whenever another batch has been inserted.
"""

from __future__ import annotations

import os
import sys

from acme import specs
from acme.agents.tf import impala
import courier
import reverb

from murmuration.environment_loops import environments
from tests.benchmarks.peers import acme_impala_parts as parts
from tests.benchmarks.peers import acme_impala_program
from tests.benchmarks.peers import acme_parts
from tests.benchmarks.peers import window


class OneProcess:
  """Actor, queue and learner by turns."""

  def __init__(
    self,
    spec: specs.EnvironmentSpec,
    batch_size: int,
    counter: acme_parts.UpdateCounter,
  ):
    self._batch_size, self._counter, self._env_steps = batch_size, counter, 0
    self._queue = parts.make_queue(spec, batch_size)
    self._server = reverb.Server([self._queue], port=None)
    client = acme_parts.Client(f'localhost:{self._server.port}')
    network = parts.make_network(spec)
    self._actor = impala.IMPALAActor(network, parts.make_adder(client))
    self._learner = parts.make_learner(
      spec, network, client, batch_size, counter
    )
    self.select_action = self._actor.select_action
    self.observe_first = self._actor.observe_first
    self.observe = self._actor.observe

  def update(self) -> None:
    self._env_steps += 1
    if self._env_steps % parts.UNROLL == 0:  # asking costs time
      inserts = self._queue.info.rate_limiter_info.insert_stats
      while inserts.completed >= (self._counter.updates + 1) * self._batch_size:
        self._learner.step()


def measure_one_process(task: str, batch_size: int, seconds: float) -> dict:
  view = window.Window(seconds)
  environment = environments.make(task, seed=0)
  spec = specs.make_environment_spec(environment)
  counter = acme_parts.UpdateCounter()
  agent = OneProcess(spec, batch_size, counter)
  acme_parts.run(agent, environment, counter, view)
  return view.result(
    'acme_impala',
    task,
    'one process, 1 environment',
    batch_size,
    acme_parts.PACKAGES,
    unroll=parts.UNROLL,
  )


def main() -> int:
  parser = window.parser(__doc__)
  parser.add_argument('--task', default='CartPole-v1')
  parser.add_argument('--batch_size', type=int, default=16, help='sequences')
  parser.add_argument(
    '--actors',
    type=int,
    default=0,
    help='actor processes under local_mp; 0: one process (default)',
  )
  args = parser.parse_args()
  if args.actors and courier.Client is courier.Server:  # a stub
    print(
      f"acme_impala with {args.actors} actors is left out: Launchpad's nodes "
      'talk over Courier, whose binary is for CPython 3.10 and TensorFlow '
      '2.12 alone.'
    )
    return os.EX_UNAVAILABLE
  with window.scratch() as directory:
    if args.actors:
      result = acme_impala_program.measure(
        args.task, args.actors, args.batch_size, args.seconds, directory
      )
    else:
      result = measure_one_process(args.task, args.batch_size, args.seconds)
  window.report(result)
  return 0


if __name__ == '__main__':
  sys.exit(main())
