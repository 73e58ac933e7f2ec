"""PSO-DQN against the plain DQN: k seeds of both, a table and a plot.

  python launch/compare.py                         # CartPole-v1, 10 seeds
  python launch/compare.py --config=acrobot --seeds=10
  python launch/compare.py --out=docs/results/cartpole --seeds=10

Same agent, budget for each agent and evaluation schedule; the rules of
specs/README.md: area under the evaluation curve, mean of the last three
evaluations, percentile bootstrap over seeds. All seeds are reported. Runs that
are there already are not made again, so it may be interrupted.
"""

from __future__ import annotations

from concurrent import futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

# Run as a file, Python would look for modules in launch/ first.
if not __package__:
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

from absl import flags
import numpy as np

from launch import command_line
from launch import learning_statistics as statistics
from launch import metrics
from launch import plots
from launch import run_directory
from launch import session

CONFIG_FILE = session.root() / 'configs' / 'pso_dqn.py'
RUN_SWARM = session.root() / 'launch' / 'run_swarm.py'
VARIANTS = {
  'PSO-DQN': (),
  'PSO-DQN, c = 0': ('--config.swarm.c_max=0.0',),
}
BASELINE = 'DQN'


def main() -> int:
  given = sys.argv[1:]
  overrides = [arg for arg in given if arg.startswith('--config')]
  command_line.define_flags(CONFIG_FILE)
  flags.DEFINE_integer('seeds', 10, 'Seeds of each variant.', 1)
  flags.DEFINE_string('out', None, 'Directory; default runs/compare-TASK.')
  flags.DEFINE_string('publish', None, 'Copies table, plot and numbers there.')
  flags.DEFINE_integer('jobs', 1, 'Runs at the same time.', 1)
  flags.DEFINE_list('variants', list(VARIANTS), 'Which swarms to run.')
  try:
    settings = command_line.parse(sys.argv)
    unknown = set(settings.options['variants']) - set(VARIANTS)
    if unknown:
      raise command_line.UsageError(
        f'--variants={sorted(unknown)} are not known: choose from '
        f'{list(VARIANTS)}.'
      )
  except command_line.UsageError as e:
    command_line.fail(str(e))
  name = settings.config.environment
  options = settings.options
  out = pathlib.Path(options['out'] or f'runs/compare-{name}')
  runs = out / 'runs'
  runs.mkdir(parents=True, exist_ok=True)
  # Whole budgets: a run that stops at its goal has no area to compare.
  overrides += ['--config.run.target_return=None']
  # The seeds of the baseline are independent agents of one process.
  jobs = [(runs / 'dqn', ['--baseline', f'--num_agents={options["seeds"]}'])]
  swarms: dict[str, list[pathlib.Path]] = {}
  for variant in options['variants']:
    swarms[variant] = []
    for seed in range(options['seeds']):
      path = runs / f'{_slug(variant)}-{seed}'
      jobs.append((path, [f'--seed={seed}', *VARIANTS[variant]]))
      swarms[variant].append(path)
  failed = _run_all(jobs, overrides, options['jobs'])
  budget = settings.config.run.steps_per_agent
  results = collect(name, budget, runs / 'dqn', swarms)
  results['arguments'] = given
  metrics.write_json(out / 'results.json', results)
  (out / 'table.md').write_text(table(results), encoding='utf-8')
  groups = {BASELINE: member_curves(runs / 'dqn', runs / 'dqn-members')}
  groups.update({v: [str(p) for p in paths] for v, paths in swarms.items()})
  plots.compare_curves(
    groups,
    out / 'learning_curves.png',
    budget=budget,
    title=f'{name}, {options["seeds"]} seeds each',
    threshold=results['threshold'],
  )
  if options['publish']:
    target = pathlib.Path(options['publish'])
    target.mkdir(parents=True, exist_ok=True)
    for file in ('results.json', 'table.md', 'learning_curves.png'):
      shutil.copy(out / file, target / file)
  print(table(results))
  print(f'Table, plot and numbers are in {out}')
  return 1 if failed else 0


def collect(
  name: str,
  budget: float,
  baseline: pathlib.Path,
  swarms: dict[str, list[pathlib.Path]],
) -> dict:
  """Every seed's area and last evaluations, and the differences."""
  reference = _reference(name)
  crashed = reference.random if reference else None
  found = {BASELINE: [_scores(c, budget, crashed) for c in _members(baseline)]}
  for variant, paths in swarms.items():
    found[variant] = [_scores(_curve(path), budget, crashed) for path in paths]
  results: dict = {
    'environment': name,
    'budget_per_agent': budget,
    'threshold': reference.threshold if reference else None,
    'variants': {},
  }
  for variant, scores in found.items():
    aucs, lasts = [s[0] for s in scores], [s[1] for s in scores]
    entry: dict = {
      'auc': aucs,
      'last_three': lasts,
      'auc_mean': float(np.mean(aucs)),
      'last_three_mean': float(np.mean(lasts)),
    }
    if reference:
      entry['solved'] = int(np.sum(np.array(lasts) >= reference.threshold))
    if variant != BASELINE:
      for what, index in (('auc', 0), ('last_three', 1)):
        difference = statistics.bootstrap_difference(
          [s[index] for s in scores], [s[index] for s in found[BASELINE]]
        )
        entry[f'{what}_difference'] = list(difference)
        entry[f'{what}_verdict'] = statistics.verdict(difference, reference)
    results['variants'][variant] = entry
  if 'PSO-DQN' in found and 'PSO-DQN, c = 0' in found:
    pull = statistics.bootstrap_difference(
      [s[0] for s in found['PSO-DQN']], [s[0] for s in found['PSO-DQN, c = 0']]
    )
    results['pull'] = {
      'auc_difference': list(pull),
      'verdict': statistics.verdict(pull, reference),
    }
  return results


def table(results: dict) -> str:
  """The results as Markdown."""
  lines = [
    f'{results["environment"]}, {results["budget_per_agent"]:,} steps for each '
    'agent; differences from DQN with a 95% bootstrap interval over seeds.',
    '',
    '| variant | seeds | AUC | last three | solved | AUC - DQN | verdict |',
    '| --- | --- | --- | --- | --- | --- | --- |',
  ]
  for variant, entry in results['variants'].items():
    difference = '-'
    if 'auc_difference' in entry:
      d, low, high = entry['auc_difference']
      difference = f'{d:+.1f} [{low:+.1f}, {high:+.1f}]'
    count = len(entry['auc'])
    solved = f'{entry["solved"]} of {count}' if 'solved' in entry else '-'
    lines.append(
      f'| {variant} | {count} | {entry["auc_mean"]:.1f} | '
      f'{entry["last_three_mean"]:.1f} | {solved} | {difference} | '
      f'{entry.get("auc_verdict", "-")} |'
    )
  if 'pull' in results:
    d, low, high = results['pull']['auc_difference']
    lines += [
      '',
      f'The pull alone (PSO-DQN minus c = 0): {d:+.1f} '
      f'[{low:+.1f}, {high:+.1f}], {results["pull"]["verdict"]}.',
    ]
  lines += ['', 'AUC of each seed:', '']
  for variant, entry in results['variants'].items():
    values = ' '.join(f'{a:.1f}' for a in entry['auc'])
    lines.append(f'- {variant}: {values}')
  return '\n'.join(lines) + '\n'


def member_curves(baseline: pathlib.Path, directory: pathlib.Path) -> list[str]:
  """One run directory for each member of a baseline, for the plot."""
  config = run_directory.open(baseline).config()
  paths = []
  for number, (steps, returns) in enumerate(_members(baseline)):
    path = directory / str(number)
    (path / 'metrics').mkdir(parents=True, exist_ok=True)
    metrics.write_json(path / 'config.json', config)
    rows = [
      {'actor_steps': s, 'actor_steps_per_member': s, 'return_mean': r}
      for s, r in zip(steps, returns)
    ]
    text = ''.join(json.dumps(row) + '\n' for row in rows)
    (path / 'metrics' / 'evaluation.jsonl').write_text(text, encoding='utf-8')
    paths.append(str(path))
  return paths


def _run_all(
  jobs: list[tuple[pathlib.Path, list[str]]],
  overrides: list[str],
  parallel: int,
) -> int:
  """Runs what is not there yet. Returns how many runs failed."""
  missing = [job for job in jobs if not (job[0] / 'summary.json').exists()]
  print(f'{len(jobs)} runs, {len(jobs) - len(missing)} of them are there.')
  began, failed = time.monotonic(), 0
  with futures.ThreadPoolExecutor(parallel) as pool:
    running = {
      pool.submit(_run, path, overrides + arguments): path
      for path, arguments in missing
    }
    for made, done in enumerate(futures.as_completed(running), 1):
      path, code = running[done], done.result()
      each = (time.monotonic() - began) / made
      left = each * (len(missing) - made) / 60
      said = f'exit code {code}, see {_log(path)}' if code else 'done'
      print(
        f'[{made}/{len(missing)}] {path.name}: {said}, about {left:.0f} min '
        'left',
        flush=True,
      )
      failed += code != 0
      if code in (command_line.USAGE, 130):
        # The next runs would end in the same way.
        pool.shutdown(wait=False, cancel_futures=True)
        print(_log(path).read_text(encoding='utf-8')[-2000:], file=sys.stderr)
        sys.exit(code)
  return failed


def _run(path: pathlib.Path, arguments: list[str]) -> int:
  """One run in a process of its own. Returns its exit code."""
  if path.exists():
    # What an interrupted comparison left: it has no summary.
    shutil.rmtree(path)
  with open(_log(path), 'w', encoding='utf-8') as file:
    return subprocess.run(
      [sys.executable, str(RUN_SWARM), f'--run_dir={path}', *arguments],
      stdout=file,
      stderr=subprocess.STDOUT,
      stdin=subprocess.DEVNULL,
      check=False,
    ).returncode


def _log(path: pathlib.Path) -> pathlib.Path:
  return path.with_suffix('.log')


def _scores(
  curve: tuple[list, list], budget: float, crashed: float | None
) -> tuple[float, float]:
  """(area, mean of the last three); a run that crashed counts as random."""
  steps, returns = curve
  if not steps or steps[-1] < 0.9 * budget:
    if crashed is None:
      raise ValueError(
        'a run ended early and the task has no random return to count for it.'
      )
    area = statistics.learning_curve_auc(steps, returns, budget, crashed)
    return area, crashed
  return (
    statistics.learning_curve_auc(steps, returns, budget),
    statistics.last_evaluations(returns),
  )


def _curve(path: pathlib.Path) -> tuple[list, list]:
  if not path.exists():
    return [], []  # it failed before it began, and counts as crashed
  rows = run_directory.open(path).metrics('evaluation')
  return _increasing(
    [(r['actor_steps_per_member'], r['return_mean']) for r in rows]
  )


def _members(path: pathlib.Path) -> list[tuple[list, list]]:
  rows = run_directory.open(path).metrics('evaluation')
  count = len(rows[0]['member_returns']) if rows else 0
  return [
    _increasing(
      [(r['actor_steps_per_member'], r['member_returns'][i]) for r in rows]
    )
    for i in range(count)
  ]


def _increasing(points: list[tuple[float, float]]) -> tuple[list, list]:
  """The last value at each step, in order of steps."""
  ordered = sorted(dict(points).items())
  return [p[0] for p in ordered], [p[1] for p in ordered]


def _reference(name: str) -> statistics.Reference | None:
  return statistics.REFERENCES.get(name)


def _slug(variant: str) -> str:
  return ''.join(c if c.isalnum() else '-' for c in variant.lower()).strip('-')


if __name__ == '__main__':
  sys.exit(main())
