"""States and snapshots of a run, and what the view makes of them."""

import io
import threading

from rich import console as rich_console

from murmuration.launch.engines import state as state_lib
from murmuration.run_records import view


def node(name, state='running', **kwargs):
  return state_lib.NodeState(name, state=state, **kwargs)


def state(*nodes, **kwargs):
  return state_lib.RunState(list(nodes), **kwargs)


def snapshot(**kwargs):
  explorers = {
    f'explorer/{i}': {
      'metrics': {
        'episode_return': 100.0 + 100 * i,
        'replay_size': 5000,
        'replay_max_size': 20_000,
      },
      'rates': {'actor_steps': 1500.0, 'learner_steps': 700.0},
      'totals': {},
      'age_s': 0.5,
    }
    for i in range(2)
  }
  server = {
    'metrics': {
      'R_star': 412.5,
      'c': 0.0183,
      'x': 11,
      'accepted': 7,
      'rejected': 13,
      'waiting_claim': float('-inf'),
      'star_version': 6,
      'star_learner_steps': 1200,
    },
    'rates': {},
    'totals': {},
    'age_s': 0.5,
  }
  return {
    'totals': {'actor_steps': 412_300, 'episodes': 3142},
    'rates': {'actor_steps': 3000.0, 'learner_steps': 1400.0},
    'nodes': {**explorers, 'star/0': server},
    'latest': {'evaluation': {'return_mean': 432.1, 'return_std': 33.0}},
    'budget': {'actor_steps': 930_000},
    'wall_clock_s': None,
    'elapsed_s': 83.0,
    'left_s': 48.0,
    'finished': False,
    'reason': '',
    'result': {},
    **kwargs,
  }


NODES = [
  node('explorer/0', pid=7),
  node('explorer/1', pid=8),
  node('star/0', pid=9),
]


def drawn(state, snapshot, width=100, **kwargs):
  console = rich_console.Console(width=width, file=io.StringIO(), record=True)
  console.print(
    view.picture('PSO-DQN', state, snapshot or {}, width=width, **kwargs)
  )
  return console.export_text()


class Client:
  """A counter's client that answers with the same snapshot."""

  def __init__(self, snapshot):
    self._snapshot = snapshot
    self.asked = threading.Event()

  def snapshot(self):
    self.asked.set()
    return self._snapshot


def plain(client, run_dir='runs/a'):
  stream = io.StringIO()
  console = rich_console.Console(file=stream)
  return view.LiveView(run_dir, lambda: client, 'PSO', console=console), stream
