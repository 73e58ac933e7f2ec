"""The exceptions that a remote call raises."""

import textwrap


class Unavailable(ConnectionError):
  """The server could not be reached, or did not answer before the deadline."""

  def __init__(self, address: str, method: str, delivered: bool, why: str):
    super().__init__(address, method, delivered, why)
    self.address = address  # of the server, its name, or both
    self.method = method
    self.delivered = delivered  # False if it certainly never reached the server
    self.why = why

  def __str__(self) -> str:
    return f'{self.method}() at {self.address}: {self.why}'


class RemoteError(RuntimeError):
  """The method raised an exception of that type on the server."""

  def __init__(self, type_name: str, message: str, remote_traceback: str):
    super().__init__(type_name, message, remote_traceback)
    self.type_name = type_name
    self.message = message
    self.remote_traceback = remote_traceback

  def __str__(self) -> str:
    return (
      f'{self.type_name}: {self.message}\n'
      'The server raised it here:\n'
      + textwrap.indent(self.remote_traceback, '  ')
    )
