"""Remote calls: plain sockets, a codec that runs no code, a deadline.

calls      both ends, and nodes of a program that serve
codec      values <-> messages
tls        the certificate of a run on several machines
directory  where servers are, by name; hosts.py on a cluster
"""

from murmuration.launch.rpc.calls import Client
from murmuration.launch.rpc.calls import Handle
from murmuration.launch.rpc.calls import Node
from murmuration.launch.rpc.calls import RemoteError
from murmuration.launch.rpc.calls import Unavailable
from murmuration.launch.rpc.calls import retry
from murmuration.launch.rpc.calls import serve
from murmuration.launch.rpc.calls import together

__all__ = [
  'Client',
  'Handle',
  'Node',
  'RemoteError',
  'Unavailable',
  'retry',
  'serve',
  'together',
]
