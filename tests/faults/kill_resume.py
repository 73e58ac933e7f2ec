"""Kills a run's launcher (-9) at random moments, and resumes it each time.

python tests/faults/kill_resume.py --times=50
python tests/faults/kill_resume.py --times=10 -- impala:cartpole --seed=1
python tests/faults/kill_resume.py --times=10 -- dqn --topology=gossip

Arguments of run.py may follow. Half of the kills come at any moment after
Python starts, half after the run has saved something. After each kill no
process may be left, and each resume must continue the run. At the end, the run
must reach its budget with exit code 0.
Prints a line for each kill and a summary; exits with 0 if all of that held.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

# When run as a file, Python searches tests/faults/ for modules first.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

from murmuration.launch import cell as cell_lib
from murmuration.run_records import checkpoints
from murmuration.run_records import counter_file
from murmuration.run_records import run_directory
from tests.faults import launched

DEFAULT = (
  'dqn', '--config.agent.hidden_sizes=(32,)', '--config.run.evaluations=2',
  '--config.run.eval_episodes=1', '--config.run.target_return=None',
)  # fmt: skip
# Seconds of learning that a run may lose: 5 between checkpoints, plus a save.
STATED_S = 6.0
_MARK = 'KILL_RESUME'
_START_S = 120.0  # until a run has saved something, on a busy machine
_GONE_S = 20.0
_END_STEPS = 4000  # of each agent, beyond what all have reached
# Kinds of checkpoints with learned state, and the array in each that counts
# updates. Shards save after a number of updates, the others by the clock.
_BY_CLOCK = ('worker', 'learner', 'explorer', 'evolution')
_UPDATES = {'shard': 'counts', 'evolution': 'numbers'}  # else 'updates'


@dataclasses.dataclass
class Kill:
  """One kill and its effects.

  Attributes:
    after_s: from the start of the process to the kill.
    lost_s: age of the oldest of the learners' newest checkpoints; None if it is
      older than the process.
    left: processes that were still running _GONE_S later.
    steps: of all actors, as counted on disk.
    learner_steps: of all learners and shards, from their checkpoints.
  """

  after_s: float
  lost_s: float | None
  left: int
  steps: int
  learner_steps: int


class Campaign:
  """One run directory, its kills, and the complaints about them."""

  def __init__(
    self, directory: pathlib.Path, command: Sequence[str], spread_s: float
  ):
    self._spread_s = spread_s
    self.run = directory / 'run'
    self.kills: list[Kill] = []
    self.complaints: list[str] = []
    self._directory = directory
    self._command = list(command)
    self._mark = uuid.uuid4().hex
    self._output = directory / 'output.txt'

  def start(self, *flags: str) -> subprocess.Popen:
    """Starts the run, or resumes it if it has a config."""
    words = [*self._command, f'--run_dir={self.run}']
    if (self.run / 'config.json').exists():
      words = [f'--resume={self.run}']
    temporary = self._directory / 'tmp'
    temporary.mkdir(exist_ok=True)
    variables = {_MARK: self._mark, 'TMPDIR': str(temporary)}
    return launched.start(*words, *flags, said=self._output, **variables)

  def kill_once(self, rng: random.Random) -> None:
    """Starts the run, kills its launcher, and checks what is left."""
    before = self.steps(), self.learner_steps()
    process = self.start(f'--config.run.steps_per_agent={10**9}')
    started = _now()
    if rng.random() < 0.5:
      self._wait_for_a_save(process, started)
    time.sleep(rng.uniform(0.0, self._spread_s))
    if process.poll() is not None:
      self._complain(f'ended by itself with code {process.returncode}')
      return
    oldest = self._oldest_save()
    saved_now = oldest is not None and oldest > started
    process.send_signal(signal.SIGKILL)
    killed = _now()
    process.wait()
    deadline = killed + _GONE_S
    while launched.living(_MARK, self._mark) and _now() < deadline:
      time.sleep(0.1)
    living = self.end()
    kill = Kill(
      after_s=killed - started,
      lost_s=killed - oldest if saved_now and oldest else None,
      left=living,
      steps=self.steps(),
      learner_steps=self.learner_steps(),
    )
    self.kills.append(kill)
    if kill.left:
      self._complain(f'{kill.left} processes outlived it by {_GONE_S:g} s')
    after = kill.steps, kill.learner_steps
    # Compared separately: actors may count on although learner steps were lost.
    if any(new < old for new, old in zip(after, before)) and saved_now:
      self._complain(f'fell back from {before} to {kill}')
    if kill.lost_s is not None and kill.lost_s > STATED_S:
      self._complain(f'lost {kill.lost_s:.1f} s')

  def end(self) -> int:
    """Kills what is left of the run; returns the number of processes."""
    living = launched.living(_MARK, self._mark)
    for left in living:
      left.kill()
    return len(living)

  def finish(self) -> None:
    """Lets the run reach its budget."""
    if not (self.run / 'config.json').exists():
      self._complain('no start came so far as to write its config')
      return
    config = run_directory.open(self.run).config()
    agents = cell_lib.resume(config).experiment.num_agents
    steps = self.steps() // agents + _END_STEPS
    process = self.start(f'--config.run.steps_per_agent={steps}')
    code = process.wait(timeout=600)
    if code != 0:
      self._complain(f'the last start ended with code {code}')

  def steps(self) -> int:
    found = counter_file.counted(self.run / 'metrics')
    return int(found.get('totals', {}).get('actor_steps', 0))

  def learner_steps(self) -> int:
    """Sum over the learners' checkpoints."""
    found = 0
    for path in self._saved((*_BY_CLOCK, *_UPDATES)):
      arrays = checkpoints.read(path)
      if arrays is not None:
        kind = path.stem.partition('-')[0]
        found += int(arrays[_UPDATES.get(kind, 'updates')].flat[0])
    return found

  def _saved(self, kinds: tuple[str, ...]) -> list[pathlib.Path]:
    found = sorted((self.run / 'checkpoints').glob('*.npz'))
    return [path for path in found if path.name.startswith(kinds)]

  def _oldest_save(self) -> float | None:
    times = [path.stat().st_mtime for path in self._saved(_BY_CLOCK)]
    return min(times, default=None)

  def _wait_for_a_save(self, process: subprocess.Popen, started: float) -> None:
    while process.poll() is None and _now() - started < _START_S:
      oldest = self._oldest_save()
      if oldest is not None and oldest > started:
        return
      time.sleep(0.1)

  def _complain(self, what: str) -> None:
    self.complaints.append(f'kill {len(self.kills)}: {what}')
    print(self.complaints[-1], flush=True)
    print(launched.last_words(self._output), flush=True)


def _now() -> float:
  return time.time()  # the clock of file times


def main(argv: Sequence[str]) -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--times', type=int, default=50, help='kills')
  parser.add_argument('--seed', type=int, default=0, help='of their moments')
  parser.add_argument(
    '--spread_s',
    type=float,
    default=6.0,
    help='seconds within which a kill comes; more on a slow machine',
  )
  parser.add_argument('--keep', help='where the run stays; default: nowhere')
  parser.add_argument('command', nargs='*', help='of run.py, after --')
  args = parser.parse_args(argv)
  directory = pathlib.Path(args.keep or tempfile.mkdtemp(prefix='kill_resume'))
  directory.mkdir(parents=True, exist_ok=True)
  campaign = Campaign(directory, args.command or DEFAULT, args.spread_s)
  rng = random.Random(args.seed)
  # By default, SIGTERM would end Python without `finally`, and leave the run.
  signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))
  try:
    for number in range(1, args.times + 1):
      campaign.kill_once(rng)
      if campaign.kills:
        kill = dataclasses.asdict(campaign.kills[-1])
        print(f'{number}/{args.times} {json.dumps(kill)}', flush=True)
    campaign.finish()
  finally:
    campaign.end()
    if not args.keep:
      shutil.rmtree(directory, ignore_errors=True)
  lost = [kill.lost_s for kill in campaign.kills if kill.lost_s is not None]
  print(
    f'{len(campaign.kills)} kills, {len(campaign.complaints)} complaints; '
    f'most lost: {max(lost, default=0.0):.1f} s of learning.'
  )
  return 1 if campaign.complaints else 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
