"""The page with all studies: what is in a row, and in which order."""

from murmuration.studies import tables


def _entry(last_three, auc, solved, **more):
  return {
    'auc': [auc, auc],
    'auc_mean': auc,
    'last_three_mean': last_three,
    'solved': solved,
    **more,
  }


def _study(name, environment, variants, **more):
  return {
    'study': name,
    'environment': environment,
    'threshold': 475.0,
    'budget_per_agent': 30_000,
    'baseline': 'DQN',
    'variants': variants,
    'contrasts': [],
    'goals': [],
    **more,
  }


_CONTRAST = {
  'name': 'The pull alone',
  'variant': 'swarm',
  'against': 'swarm, c = 0',
  'auc_difference': [-1.0, -2.0, 0.5],
  'auc_verdict': 'not shown',
}
_RESULTS = {
  'b': _study(
    'b',
    'my.module:Maze-v0',
    {'DQN': _entry(1.0, 1.0, 0)},
    goals=[
      {'variant': 'DQN', 'last_three': 2.0, 'reached': 4, 'seeds': 5}
      | {'found': 1, 'of': 2, 'met': None}
    ],
  ),
  'a': _study(
    'a',
    'CartPole-v1',
    {
      'DQN': _entry(400.0, 1_300.0, 1),
      'swarm': _entry(
        400.0,
        1_310.0,
        2,
        budget=20_000,
        auc_difference=[10.0, 5.04, 15.0],
        auc_verdict='superior',
      ),
      'swarm, c = 0': _entry(500.0, 9.0, 2),
    },
    contrasts=[_CONTRAST],
  ),
}


def _rows(text):
  return [line.strip('| ').split(' | ') for line in text.splitlines()[2:]]


def test_scores_are_by_task_and_the_best_comes_first():
  assert _rows(tables.scores(_RESULTS)) == [
    ['CartPole-v1', 'swarm, c = 0', '2 of 2', '475', '500.0', '9.0']
    + ['30,000', '[`a`](results/a/table.md)'],
    # As many in the last three evaluations: by area. Fewer steps than others.
    ['CartPole-v1', 'swarm', '2 of 2', '475', '400.0', '1,310.0']
    + ['20,000', '[`a`](results/a/table.md)'],
    ['CartPole-v1', 'DQN', '1 of 2', '475', '400.0', '1,300.0']
    + ['30,000', '[`a`](results/a/table.md)'],
    ['Maze-v0', 'DQN', '0 of 2', '475', '1.0', '1.0']
    + ['30,000', '[`b`](results/b/table.md)'],
  ]


def test_comparisons_are_those_with_the_baseline_and_the_contrasts():
  link = '[`a`](results/a/table.md)'
  assert _rows(tables.comparisons(_RESULTS)) == [
    ['CartPole-v1', 'swarm', 'DQN', '2', '+10.0 [+5.0, +15.0]', 'superior']
    + [link],
    ['CartPole-v1', 'swarm', 'swarm, c = 0', '2', '-1.0 [-2.0, +0.5]']
    + ['not shown', link],
  ]


def test_goals_say_whether_they_are_met():
  assert _rows(tables.goals(_RESULTS)) == [
    ['Maze-v0', 'DQN', '>= 2', '4 of 5', '1 of 2']
    + ['not judged, as that needs 5 seeds', '[`b`](results/b/table.md)']
  ]
