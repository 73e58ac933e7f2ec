"""A stub in the place of Courier.

Its compiled half was made for CPython 3.10 and TensorFlow 2.12 and loads beside
no other. Launchpad imports these names; our nodes talk over launch/rpc.
"""

import sys


class Server:
  def __init__(self, *args, **kwargs):
    raise NotImplementedError(f'{__doc__}({__file__})')


Client = Server
# Launchpad imports courier.handlers.python.pybind too.
handlers = python = pybind = sys.modules[__name__]
for _path in ('handlers', 'handlers.python', 'handlers.python.pybind'):
  sys.modules[f'{__name__}.{_path}'] = handlers
