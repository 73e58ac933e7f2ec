"""Addresses of servers, and sockets that listen there or connect to them.

unix:PATH         a socket in the file system, for processes of one machine.
                  Each end asks the kernel who the other is (SO_PEERCRED) and
                  takes its own user only.
tls://HOST:PORT   between machines: TCP, with the run's certificate at both
                  ends (tls.py). HOST may be an IPv6 address, with or without
                  brackets: what follows the last colon is the port.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import os
import pathlib
import socket
import struct

from murmuration.launch.rpc import tls

_UNIX, _TLS = 'unix:', 'tls://'
_PATH_BYTES = 107  # of a socket's name in the kernel, less the zero at its end
_BACKLOG = 4096
_PROBE_S = 1.0
_GONE_S = 10.0  # without a sign of the other host
_CREDENTIALS = struct.Struct('3i')  # process, user, group
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_TIMEVAL = struct.Struct('2l')  # seconds, microseconds


class Stranger(PermissionError):
  """The other end belongs to another user."""


def listen(address: str) -> socket.socket:
  """Listens; does not block.

  Raises:
    OSError: somebody listens there already, or the address cannot be used.
    ValueError: it is no address of ours.
  """
  try:
    if address.startswith(_UNIX):
      return _listen_unix(pathlib.Path(address[len(_UNIX) :]))
    host, port = _host_port(address)
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    listener = socket.create_server(
      (host, port), family=family, backlog=_BACKLOG
    )
  except OSError as e:
    raise _cannot_listen(address, e) from e
  listener.setblocking(False)
  return listener


def _cannot_listen(address: str, error: OSError) -> OSError:
  """What to say of it, and what to change where that is known."""
  place = address.rsplit(':', 1)[1]  # a port or a path
  is_tls = address.startswith(_TLS)
  if error.errno == errno.EADDRINUSE:
    what = f'port {place}' if is_tls else address
    look = f't sport = :{place}' if is_tls else f'x src {place}'
    return OSError(
      f'Cannot listen on {what} ({error}). Another process probably uses it: '
      f'look with `ss -lnp{look}`, end it, and start the run again.'
    )
  said = f'Cannot listen at {address} ({error}).'
  if error.errno in _NOT_HERE:
    said += ' It has to be an address of this host: `ip address` shows them.'
  return OSError(said)


def _listen_unix(path: pathlib.Path) -> socket.socket:
  listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
  try:
    with _short(path) as name:
      try:
        listener.bind(name)
      except OSError:
        # What a server that was killed has left. One that lives answers.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
          probe.settimeout(_PROBE_S)
          if not path.is_socket() or probe.connect_ex(name) == 0:
            raise
        path.unlink()
        listener.bind(name)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
  except BaseException:
    listener.close()
    raise
  return listener


def close_listener(listener: socket.socket, address: str) -> None:
  """Closes what `listen` has made; takes its name away."""
  listener.close()
  if address.startswith(_UNIX):
    pathlib.Path(address[len(_UNIX) :]).unlink(missing_ok=True)


def connect(
  address: str, timeout_s: float, credentials: tls.Credentials | None = None
) -> socket.socket:
  """Connects; the socket has the timeout.

  Raises:
    OSError: nobody listens there, or it is not one of this run.
    ValueError: it is no address of ours.
  """
  if address.startswith(_UNIX):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
      connection.settimeout(timeout_s)
      with _short(pathlib.Path(address[len(_UNIX) :])) as name:
        connection.connect(name)
      check_user(connection)
    except BaseException:
      connection.close()
      raise
    return connection
  host_port = _host_port(address)
  if credentials is None:
    raise ValueError(f'{address} needs the certificates of its run.')
  plain = socket.create_connection(host_port, timeout_s)
  try:
    tune(plain)
    return credentials.client_context().wrap_socket(plain)
  except BaseException:
    plain.close()
    raise


def accepted(
  connection: socket.socket, credentials: tls.Credentials | None
) -> socket.socket:
  """What a server makes of a connection that came in; does not block.

  Raises:
    Stranger: it is of another user.
  """
  connection.setblocking(False)
  if connection.family == socket.AF_UNIX:
    check_user(connection)
    return connection
  assert credentials is not None
  tune(connection)
  return credentials.server_context().wrap_socket(
    connection, server_side=True, do_handshake_on_connect=False
  )


def tune(connection: socket.socket) -> None:
  """For TCP between hosts: no delay, and an end if the other host is gone.

  A host whose power or network fails sends no word of it.
  """
  for option, value in (
    (socket.TCP_NODELAY, 1),
    (socket.TCP_USER_TIMEOUT, int(1000 * _GONE_S)),
    (socket.TCP_KEEPIDLE, int(_GONE_S / 3)),
    (socket.TCP_KEEPINTVL, int(_GONE_S / 3)),
  ):
    connection.setsockopt(socket.IPPROTO_TCP, option, value)
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def set_timeout(connection: socket.socket, timeout_s: float) -> None:
  """Limits each call that sends or receives, which raises BlockingIOError then.

  The kernel's own limit: Python's would be one more call to the kernel before
  each other.
  """
  connection.settimeout(None)
  span = _TIMEVAL.pack(*divmod(max(int(1e6 * timeout_s), 1), 10**6))
  for side in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
    connection.setsockopt(socket.SOL_SOCKET, side, span)


def check_user(connection: socket.socket) -> None:
  """Raises Stranger unless the other end runs as this user."""
  _, user, _ = _CREDENTIALS.unpack(
    connection.getsockopt(
      socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
  )
  if user != os.geteuid():
    raise Stranger(f'user {user} is not {os.geteuid()}, who runs this')


def needs_certificate(address: str) -> bool:
  return address.startswith(_TLS)


def _host_port(address: str) -> tuple[str, int]:
  host, _, port = address.removeprefix(_TLS).rpartition(':')
  host = host.removeprefix('[').removesuffix(']')
  if not address.startswith(_TLS) or not host or not port.isdigit():
    raise ValueError(
      f'{address!r} is no address of a server: it is unix:PATH or '
      'tls://HOST:PORT.'
    )
  return host, int(port)


@contextlib.contextmanager
def _short(path: pathlib.Path) -> Iterator[str]:
  """A name of a socket that fits into the kernel's 108 bytes."""
  name = str(path)
  if len(os.fsencode(name)) <= _PATH_BYTES:
    yield name
    return
  directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
  try:
    yield f'/proc/self/fd/{directory}/{path.name}'
  finally:
    os.close(directory)
