"""Remote calls: plain sockets, a codec that runs no code, a deadline.

A call has a deadline, runs at most once, and reconnects at once to a server
that came back, also at another address (directory.py). A server answers only
the methods that its object lists in `serves`, and only its own user (unix
sockets) or who has the run's certificate (TLS).

  client    calls; one channel.py for each call that is under way
  server    a node, and `serve`: which methods, and what they answer
  serving   the socket and the threads behind it; connection.py is one of them
  codec     values <-> messages
  sockets   addresses, and who is at the other end
  tls       the certificate of a run on several machines
  directory where servers are, by name
"""

from murmuration.launch.rpc.client import Client
from murmuration.launch.rpc.client import retry
from murmuration.launch.rpc.client import together
from murmuration.launch.rpc.errors import RemoteError
from murmuration.launch.rpc.errors import Unavailable
from murmuration.launch.rpc.server import Handle
from murmuration.launch.rpc.server import Node
from murmuration.launch.rpc.server import serve

__all__ = [
  'Client',
  'Handle',
  'Node',
  'RemoteError',
  'Unavailable',
  'retry',
  'together',
  'serve',
]
