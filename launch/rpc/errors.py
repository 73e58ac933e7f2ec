"""The exceptions that a remote call raises."""


class Unavailable(ConnectionError):
  """The server could not be reached, or did not answer before the deadline.

  Attributes:
    address: of the server: host:port, its name, or both.
    method: the method that was called.
    delivered: False if the call certainly never reached the server; True if
      the server may have run it.
    why: the reason, as text.
  """

  def __init__(self, address: str, method: str, delivered: bool, why: str):
    super().__init__(address, method, delivered, why)
    self.address = address
    self.method = method
    self.delivered = delivered
    self.why = why

  def __str__(self) -> str:
    return f'{self.method}() at {self.address}: {self.why}'


class RemoteError(RuntimeError):
  """The method raised on the server.

  Attributes:
    type_name: class name of the server's exception.
    message: its message.
    remote_traceback: its traceback, as text.
  """

  def __init__(self, type_name: str, message: str, remote_traceback: str):
    super().__init__(type_name, message, remote_traceback)
    self.type_name = type_name
    self.message = message
    self.remote_traceback = remote_traceback

  def __str__(self) -> str:
    return (
      f'{self.type_name}: {self.message}\n'
      f'The server raised it here:\n{self.remote_traceback}'
    )
