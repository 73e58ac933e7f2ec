"""Remote calls: Courier with a codec and a deadline.

Plain Courier hangs for ever when an argument holds a NumPy array or scalar, and
when the server is gone. Here every call is one bytes argument to one Courier
method, has a deadline, and reconnects at once to a server that came back, also
at another address (directory.py).

Courier listens on all interfaces without authentication and unpickles what it
is sent: run on a machine and network that you trust.
"""

from launch.rpc.client import Client
from launch.rpc.client import retry
from launch.rpc.errors import RemoteError
from launch.rpc.errors import Unavailable
from launch.rpc.server import Handle
from launch.rpc.server import Node
from launch.rpc.server import serve

__all__ = [
  'Client',
  'Handle',
  'Node',
  'RemoteError',
  'Unavailable',
  'retry',
  'serve',
]
