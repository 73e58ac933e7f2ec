"""What is read from the logs of nodes."""

from murmuration.launch.engines import node_logs
from murmuration.launch.engines import supervision


def test_of_deep_stacks_the_innermost_frames_of_the_hit_thread_are_kept(
  tmp_path,
):
  log = tmp_path / 'node.log'
  log.write_text('what it said before\n')
  logs = node_logs.Logs([log])
  logs.begins(0)
  frames = [f'  File "deep.py", line {i} in outer' for i in range(50)]
  lines = ['Fatal Python error: Aborted', '']
  lines += ['Thread 0x1 (most recent call first):', *frames, '']
  lines += ['Current thread 0x2 (most recent call first):']
  lines += ['  File "env.py", line 7 in hung', *frames, '']
  lines += ['Extension modules: numpy (total: 1)']
  with log.open('a') as file:
    file.write('\n'.join(lines) + '\n')
  where = logs.error(0, -6, '')
  assert where.startswith('Current thread 0x2') and len(where.splitlines()) < 50
  assert where.endswith('killed by SIGABRT') and 'numpy' not in where
  assert supervision.innermost(where) == ', in hung (env.py, line 7)'


def test_a_log_that_cannot_be_read_says_nothing(tmp_path, monkeypatch):
  def stale(path, **options):
    raise OSError(116, 'Stale file handle')

  monkeypatch.setattr(node_logs.pathlib.Path, 'stat', stale)
  logs = node_logs.Logs([tmp_path / 'node.log'])
  logs.begins(0)
  assert logs.error(0, -40, '') == 'killed by signal 40'


def test_of_a_kill_it_is_said_what_is_known(tmp_path):
  logs = node_logs.Logs([tmp_path / '0.log'])
  unknown = 'killed by SIGKILL (out of memory? see `dmesg`)'
  assert logs.error(0, -9, '') == unknown
  assert logs.error(0, -9, '', True).startswith(
    'killed by SIGKILL: its host, or a container on it, has just run out of '
  )
