"""The certificate of one run, for servers and clients on several machines.

`make` creates one self-signed certificate. All nodes of the run hold it with
its key, show it at both ends of a connection, and accept no other.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import socket
import ssl
import tempfile

_DAYS = 365
_GONE_S = 10.0  # without a sign of the other host
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME


@dataclasses.dataclass(frozen=True)
class Credentials:
  """With what a node of the run identifies itself, as PEM."""

  certificate: str
  # The private key of that. Any process that has it belongs to the run.
  key: str = dataclasses.field(repr=False)

  def server_context(self) -> ssl.SSLContext:
    return _context(self, ssl.PROTOCOL_TLS_SERVER)

  def client_context(self) -> ssl.SSLContext:
    return _context(self, ssl.PROTOCOL_TLS_CLIENT)


def make() -> Credentials:
  """Makes the credentials of a new run."""
  # Here, as only a run on several hosts needs the package.
  from cryptography import x509
  from cryptography.hazmat.primitives import hashes
  from cryptography.hazmat.primitives import serialization
  from cryptography.hazmat.primitives.asymmetric import ec

  key = ec.generate_private_key(ec.SECP256R1())
  name = x509.Name(
    [x509.NameAttribute(x509.NameOID.COMMON_NAME, 'murmuration run')]
  )
  now = datetime.datetime.now(datetime.timezone.utc)
  certificate = (
    x509.CertificateBuilder()
    .subject_name(name)
    .issuer_name(name)
    .public_key(key.public_key())
    .serial_number(x509.random_serial_number())
    .not_valid_before(now)
    .not_valid_after(now + datetime.timedelta(days=_DAYS))
    # It signs nothing else: a certificate signed with this key is no way in.
    .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    .sign(key, hashes.SHA256())
  )
  pem = serialization.Encoding.PEM
  return Credentials(
    certificate.public_bytes(pem).decode(),
    key.private_bytes(
      pem,
      serialization.PrivateFormat.PKCS8,
      serialization.NoEncryption(),
    ).decode(),
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


@functools.lru_cache(maxsize=8)
def _context(credentials: Credentials, protocol: int) -> ssl.SSLContext:
  context = ssl.SSLContext(protocol)
  context.minimum_version = ssl.TLSVersion.TLSv1_3
  # All nodes have the same certificate, on any host.
  context.check_hostname = False
  context.verify_mode = ssl.CERT_REQUIRED
  # The certificate is as new as its run, and a host's clock may be behind.
  context.verify_flags |= _NO_CHECK_TIME
  if protocol == ssl.PROTOCOL_TLS_SERVER:
    # A client could mistake a session ticket for an answer.
    context.num_tickets = 0
  context.load_verify_locations(cadata=credentials.certificate)
  with tempfile.NamedTemporaryFile('w', prefix='murmuration-') as file:
    # The ssl module reads these two only from a file; this one has mode 0600.
    file.write(credentials.certificate + credentials.key)
    file.flush()
    context.load_cert_chain(file.name)
  return context
