"""The process of a host that imports the stack, and from which nodes fork.

It is nobody's child, so that it outlives an agent that is killed for as long as
it takes to end the nodes and to remove their files.
"""

import contextlib
import os
import socket
import sys

from launch.engines import zygote
from run_records import later

COMMAND = f'from {__name__} import main; main()'  # of `python -c`


def main() -> None:
  """What `COMMAND DESCRIPTOR` runs."""
  if os.fork():
    os._exit(0)
  channel = socket.socket(fileno=int(sys.argv[1]))
  channel.set_inheritable(False)
  # Not `later.SLOW`, which names a module that the user's directory may have.
  later.load(('tensorflow', 'sonnet', 'reverb', 'gymnasium'))
  # If the agent is gone, the zygote notices, and removes the run's files.
  with contextlib.suppress(OSError):
    zygote.send(channel, event='ready', index=-1, pid=os.getpid())
  zygote.Zygote(channel, None).run()
