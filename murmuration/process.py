"""A helper process: where all that needs TensorFlow is done for a caller."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from murmuration import arguments as arguments_lib
from murmuration import objects
from murmuration import setup

# The engine gives its nodes 8 s to save and to end.
_STOP_S = 30.0
_INTERRUPT_S = (
  2.0  # an operation that does not end by then goes with the process
)
_TAIL = 40  # lines of output that are shown of a helper that failed
_ERRORS = {
  error.__name__: error
  for error in (ValueError, RuntimeError, OSError, TypeError)
}


class MadeRoom(RuntimeError):
  """A process has made room for another one since `service` returned it."""


class Helper:
  """A process that runs helper.py, and what it says.

  What it prints goes to a file without a name, which goes with it.
  """

  def __init__(self, given: objects.Objects, trains: bool = False):
    """Starts the process.

    Args:
      given: objects that it has to know beside importable names.
      trains: whether it is to train one run, or to serve.

    Raises:
      ImportError: the wheel is installed without Launchpad.
      RuntimeError: the process has died.
    """
    setup.require()
    self._output: Any = tempfile.TemporaryFile()
    self._lock = threading.Lock()
    self._stop = threading.Lock()  # who gets it asks the process to stop
    self._calls = 0
    self._told = 0  # bytes of its output
    # Numbers of policies: that nobody has any more, and that remember episodes.
    self.gone: list[int] = []
    self.remembering: set[int] = set()
    self.connection, theirs = multiprocessing.Pipe()
    self.owner = os.getpid()
    # The process inherits it, and takes it back when it can be stopped.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
      self.process = subprocess.Popen(
        [sys.executable, '-m', 'murmuration.helper', str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=self._output,
        stderr=self._output,
        pass_fds=[theirs.fileno()],
        # Ctrl-C in a terminal is for the caller, who stops the helper.
        start_new_session=True,
      )
    finally:
      signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()
    self._send(
      {
        'path': objects.search_path(),
        'given': given.pickled(),
        'trains': trains,
      }
    )

  def call(self, operation: str, **arguments: Any) -> Any:
    """Asks for an operation of helper.py and waits for its answer.

    Raises:
      MadeRoom: it was closed before it was asked.
      ValueError, RuntimeError, OSError: of the operation, with its sentence.
    """
    with self._lock:
      if self._output.closed:  # as the last of all that `close` does
        raise MadeRoom
      self.begin(operation, **arguments)
      try:
        message = self._answer()
      except BaseException:
        self._break_off()
        raise
    return self.result(message)

  def _answer(self) -> tuple:
    """Waits for the answer to the last call."""
    while (message := self.receive(60.0)) is None or message[-1] != self._calls:
      pass
    return message

  def _break_off(self) -> None:
    """Ends the operation for which nobody waits any more: Ctrl-C, mostly."""
    deadline, over = time.monotonic() + _INTERRUPT_S, False
    try:
      self.process.send_signal(signal.SIGINT)
      while not over and time.monotonic() < deadline:
        message = self.receive(0.05)
        over = message is not None and message[-1] == self._calls
    except RuntimeError:
      over = True  # it has ended
    finally:
      if not over:
        self._kill()

  def begin(self, operation: str, **arguments: Any) -> None:
    """Asks only; `receive` has what comes."""
    self._send((operation, arguments))
    # Nothing is sent of what cannot be pickled, and nothing answers it.
    self._calls += 1

  def _send(self, message: Any) -> None:
    try:
      self.connection.send(message)
    except OSError:
      self._has_died()
    except KeyboardInterrupt:
      self._kill()  # what has half a message waits for the other half
      raise

  def receive(self, timeout_s: float) -> tuple | None:
    """The next message; None if there was none in that time.

    Raises:
      RuntimeError: the process has died.
    """
    try:
      if self.connection.poll(timeout_s):
        return self.connection.recv()
    except (EOFError, OSError):
      self._has_died()
    # Nodes hold copies of its end, so that the end of the file may not come.
    if self.process.poll() is not None and not self.connection.poll(0):
      self._has_died()
    return None

  def result(self, message: tuple) -> Any:
    """What a last message says, or raises."""
    said, content, _ = message
    if said == 'error':
      kind, text = content
      raise _ERRORS.get(kind, RuntimeError)(arguments_lib.in_python(text))
    return content

  def said(self) -> list[str]:
    """Whole lines that it printed since this was asked last."""
    output = self._output.fileno()
    # Not read(): its process writes where ours would leave the file.
    news = os.pread(output, os.fstat(output).st_size - self._told, self._told)
    news = news[: news.rfind(b'\n') + 1]
    self._told += len(news)
    return news.decode(errors='replace').splitlines()

  def output(self) -> str:
    """The last lines that it printed."""
    self._output.seek(0)
    text = self._output.read().decode(errors='replace')
    return '\n'.join(text.splitlines()[-_TAIL:])

  def stop(self) -> None:
    """Asks the process to end what it does and to save; from any thread."""
    # Once: a second signal would not let the nodes save.
    if self._stop.acquire(blocking=False):
      with contextlib.suppress(ProcessLookupError):
        self.process.send_signal(signal.SIGTERM)

  def drain(self) -> None:
    """Waits until what it does is over, whatever it says."""
    deadline = time.monotonic() + _STOP_S
    with contextlib.suppress(RuntimeError):
      while time.monotonic() < deadline:
        message = self.receive(0.1)
        if message is not None and message[0] in ('done', 'error'):
          return

  @property
  def lives(self) -> bool:
    """Whether this process can ask it."""
    return self.owner == os.getpid() and self.process.poll() is None

  def let_go(self) -> None:
    """Tells a process that serves to end, without waiting for it."""
    if self.owner == os.getpid():
      self.connection.close()

  def close(self) -> str:
    """Ends the process; returns its last output when it is gone."""
    if self.owner != os.getpid():
      return ''
    self.connection.close()
    deadline = time.monotonic() + _STOP_S
    while self.process.poll() is None and time.monotonic() < deadline:
      time.sleep(0.01)
    if self.process.poll() is None:
      self._kill()
    output = self.output()
    self._output.close()
    return output

  def _kill(self) -> None:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self.process.pid, signal.SIGKILL)
    self.process.wait()

  def _has_died(self) -> None:
    code = self.process.wait(timeout=_STOP_S)
    raise RuntimeError(
      f'The helper process ended with exit code {code}. Its last output:\n'
      f'{self.output()}'
    )


# Each is a process with TensorFlow; `service` says when there are more.
_MOST_SERVICES = 2
_services: dict[Any, Helper] = {}  # the one asked last is last
trained = 0  # runs with code of the caller's own
_changing = threading.Lock()  # held while services start and make room


def service(given: objects.Objects) -> Helper:
  """The process that plays policies for this one; started at the first call.

  One for all runs, but for those of objects, which have one for each set. As a
  process imports a module once, and the caller may have changed it since, code
  of the caller's own has another one after each training of such code, and
  after a change of the search path. One of code before the last training makes
  room, else the one that was asked longest ago, unless it is busy, or a policy
  of it remembers the episodes that it is in.
  """
  code = (trained, *objects.search_path()) if given.own else ()
  key = given.pickled(), code
  with _changing:
    found = _services.pop(key, None)
    if found is None or not found.lives:
      if found is not None:
        found.close()
      for oldest, helper in sorted(
        _services.items(), key=lambda item: item[0][1][:1] in ((), (trained,))
      ):
        if len(_services) < _MOST_SERVICES:
          break
        # Of one that is busy, another thread waits for the answer.
        if not helper._lock.acquire(blocking=False):
          continue
        try:
          if not helper.remembering:  # nor will it before its next call
            del _services[oldest]
            helper.close()
        finally:
          helper._lock.release()
      found = Helper(given)
    _services[key] = found
    return found


@atexit.register
def _close() -> None:
  for helper in _services.values():
    helper.let_go()  # of all first: they end side by side
  for helper in _services.values():
    helper.close()
