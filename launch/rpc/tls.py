"""Certificates of one run, for servers and clients on several machines.

`make` creates a certificate authority for the run, signs one certificate with
it and discards the authority's key, so that no further certificate can be made.
All nodes of the run hold that certificate, and both ends of a connection accept
only certificates of that authority.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import ssl
import subprocess
import tempfile

_DAYS = 365
_SAID = 400  # characters that are shown of what openssl says
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME
_CONFIG = """
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign
[node]
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth, clientAuth
"""
_KEY = ('-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes')


@dataclasses.dataclass(frozen=True)
class Credentials:
  """The certificates with which a node of the run identifies itself, PEM."""

  authority: str  # certificate of the run's authority
  certificate: str  # of the run's nodes
  # The private key of that. Any process that has it belongs to the run.
  key: str = dataclasses.field(repr=False)

  def server_context(self) -> ssl.SSLContext:
    return _context(self, ssl.PROTOCOL_TLS_SERVER)

  def client_context(self) -> ssl.SSLContext:
    return _context(self, ssl.PROTOCOL_TLS_CLIENT)


def make() -> Credentials:
  """Makes the credentials of a new run with the `openssl` command.

  Raises:
    OSError: the command is not there, or failed.
  """
  with tempfile.TemporaryDirectory(prefix='murmuration-') as made:
    where = pathlib.Path(made)  # mode 0700, and removed below
    (where / 'made.cnf').write_text(_CONFIG)
    config = ('-config', 'made.cnf')
    _openssl(
      where,
      *('req', '-x509', *_KEY, *config, '-extensions', 'ca'),
      *('-subj', '/CN=murmuration run', '-days', str(_DAYS)),
      *('-keyout', 'ca.key', '-out', 'ca.pem'),
    )
    _openssl(
      where,
      *('req', '-new', *_KEY, *config, '-subj', '/CN=murmuration node'),
      *('-keyout', 'node.key', '-out', 'node.csr'),
    )
    _openssl(
      where,
      *('x509', '-req', '-in', 'node.csr', '-CA', 'ca.pem', '-CAkey', 'ca.key'),
      *('-set_serial', '1', '-days', str(_DAYS), '-out', 'node.pem'),
      *('-extfile', 'made.cnf', '-extensions', 'node'),
    )
    names = ('ca.pem', 'node.pem', 'node.key')
    return Credentials(*((where / name).read_text() for name in names))


def _openssl(where: pathlib.Path, *arguments: str) -> None:
  try:
    subprocess.run(
      ['openssl', *arguments],
      cwd=where,
      capture_output=True,
      text=True,
      timeout=60,
      check=True,
    )
  except (OSError, subprocess.SubprocessError) as e:
    said = ' '.join(f'{e} {getattr(e, "stderr", None) or ""}'.split())[-_SAID:]
    raise OSError(
      f'No certificates for this run: `openssl {arguments[0]}` failed '
      f'({said}). Install or mend OpenSSL, or run on one machine.'
    ) from e


@functools.lru_cache(maxsize=8)
def _context(credentials: Credentials, protocol: int) -> ssl.SSLContext:
  context = ssl.SSLContext(protocol)
  context.minimum_version = ssl.TLSVersion.TLSv1_3
  # All nodes have the same certificate, on any host, so only its signature is
  # checked.
  context.check_hostname = False
  context.verify_mode = ssl.CERT_REQUIRED
  # The certificate is as new as its run, and a host's clock may be behind.
  context.verify_flags |= _NO_CHECK_TIME
  if protocol == ssl.PROTOCOL_TLS_SERVER:
    # A client could mistake a session ticket for an answer.
    context.num_tickets = 0
  context.load_verify_locations(cadata=credentials.authority)
  with tempfile.NamedTemporaryFile('w', prefix='murmuration-') as file:
    # The ssl module reads these two only from a file; this one has mode 0600.
    file.write(credentials.certificate + credentials.key)
    file.flush()
    context.load_cert_chain(file.name)
  return context
