"""The command `python -m replay.inspect`."""

import contextlib
import os
import sys

from replay.inspect import command

if __name__ == '__main__':
  code = command.main()
  with contextlib.suppress(BrokenPipeError):
    sys.stdout.flush()
  sys.stderr.flush()
  # A thread that still waits for a server that went away would keep or crash
  # the interpreter.
  os._exit(code)
