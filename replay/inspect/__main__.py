"""The command `murmuration inspect`."""

import contextlib
import os
import sys

from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

from murmuration.replay.inspect import command

if __name__ == '__main__':
  first.raise_interrupts()
  code = command.main(own_process=True)
  with contextlib.suppress(BrokenPipeError):
    sys.stdout.flush()
  sys.stderr.flush()
  # A thread may still wait for a server that went away, and would delay or
  # crash a normal exit of the interpreter.
  os._exit(code)
