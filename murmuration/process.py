"""The process of a run, as its caller has it: started, read, stopped, ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any

from murmuration import objects
from murmuration import setup

# The engine gives its nodes 8 s to save and to end.
_STOP_S = 30.0
_TAIL = 40  # lines of output that are shown of a run that failed


class Process:
  """A process that runs helper.py.

  What it prints goes to a file without a name, which goes with it.
  """

  def __init__(self, **words: Any):
    """Starts the process, and tells it what to train.

    Args:
      **words: what helper.py takes.

    Raises:
      ImportError: the wheel is installed without Launchpad.
    """
    setup.require()
    self._output: Any = tempfile.TemporaryFile()
    self._told = 0  # bytes of its output
    self._stop = threading.Lock()  # who gets it asks the process to stop
    self._connection, theirs = multiprocessing.Pipe()
    # The process inherits it, and takes it back when it can be stopped.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
      self._process = subprocess.Popen(
        [sys.executable, '-m', 'murmuration.helper', str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=self._output,
        stderr=self._output,
        pass_fds=[theirs.fileno()],
        # Ctrl-C in a terminal is for the caller, who stops the run.
        start_new_session=True,
      )
    finally:
      signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()
    known = {'caller': os.getpid(), 'search_path': objects.search_path()}
    try:
      with contextlib.suppress(OSError):  # it has died, as its exit code says
        self._connection.send({**known, **words})
    except BaseException:
      self._kill()
      raise

  def begun(self) -> dict[str, Any] | None:
    """The path and the budget of the run, once, when its nodes have started."""
    with contextlib.suppress(EOFError, OSError):
      if self._connection.poll():
        return self._connection.recv()
    return None

  def ended(self, timeout_s: float) -> bool:
    """Waits for its end at most so long."""
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(timeout_s)
    return self._process.poll() is not None

  def said(self) -> list[str]:
    """Whole lines that it printed since this was asked last."""
    output = self._output.fileno()
    # Not read(): its process writes where ours would leave the file.
    news = os.pread(output, os.fstat(output).st_size - self._told, self._told)
    news = news[: news.rfind(b'\n') + 1]
    self._told += len(news)
    return news.decode(errors='replace').splitlines()

  def stop(self) -> None:
    """Asks the run to save and to end; from any thread."""
    # Once: a second signal would not let the nodes save.
    if self._stop.acquire(blocking=False):
      with contextlib.suppress(ProcessLookupError):
        self._process.send_signal(signal.SIGINT)

  def end(self) -> None:
    """Stops the run if it goes on, and waits until it has saved."""
    try:
      if not self.ended(0.0):
        self.stop()
        self.ended(_STOP_S)
    finally:
      self._kill()

  def close(self) -> tuple[int, str]:
    """Ends the process; returns its exit code, and the last that it printed."""
    self.end()
    self._connection.close()
    with self._output as output:
      output.seek(0)
      text = output.read().decode(errors='replace')
    return self._process.returncode, '\n'.join(text.splitlines()[-_TAIL:])

  def _kill(self) -> None:
    if self._process.poll() is None:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(self._process.pid, signal.SIGKILL)
      self._process.wait()
