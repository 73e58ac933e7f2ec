"""One peer: EvoTorch's PGPE on gymnasium's CartPole-v1, in Python.

  .peers/evotorch/bin/python tests/benchmarks/peers/evotorch_es.py

64 policies of 64x64 with tanh in a generation, an episode each: mirrored pairs,
centred ranks, Adam, as ours. One torch thread; with --actors policies are
spread over as many processes of Ray.
Needs an environment of its own: `python requirements/environment.py evotorch`.
"""

from __future__ import annotations

import sys

from evotorch import algorithms
from evotorch import neuroevolution
import torch

# From beside this file: packages here may bring a `tests` of their own.
import window

_POPULATION = 64
_NETWORK = (
  'Linear(obs_length, 64) >> Tanh() >> Linear(64, 64) >> Tanh() '
  '>> Linear(64, act_length)'
)
_PACKAGES = ['evotorch', 'torch', 'numpy', 'gymnasium']


def main() -> int:
  parser = window.parser(__doc__)
  parser.add_argument('--task', default='CartPole-v1')
  parser.add_argument(
    '--actors', type=int, default=0, help='processes of Ray; 0: none'
  )
  args = parser.parse_args()
  torch.manual_seed(1)
  torch.set_num_threads(1)
  with window.scratch():
    problem = neuroevolution.GymNE(args.task, _NETWORK, num_actors=args.actors)
    searcher = algorithms.PGPE(
      problem,
      popsize=_POPULATION,
      center_learning_rate=0.05,
      stdev_learning_rate=0.0,
      stdev_init=0.1,
      optimizer='adam',
      ranking_method='centered',
    )
    view, episodes, generations = window.Window(args.seconds), [], 0
    going = True
    while going:
      searcher.step()
      generations += 1
      status = searcher.status
      episodes.append(int(status['total_episode_count']))
      going = view.see(int(status['total_interaction_count']), generations)
    found = view.result(
      'evotorch',
      args.task,
      f'population {_POPULATION}, processes of Ray: {args.actors}',
      _POPULATION,
      _PACKAGES,
    )
    if args.actors:
      problem.kill_actors()
  found['episodes_per_s'] = round(
    (episodes[-1] - episodes[0]) / found['seconds'], 1
  )
  window.report(found)
  return 0


if __name__ == '__main__':
  sys.exit(main())
