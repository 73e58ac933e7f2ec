"""A link between two Ethernet devices that is late and loses frames.

What `tc netem` does, for kernels that were built without it. Each end is a TAP
device; a process of its own carries frames from one to the other.
"""

from __future__ import annotations

import collections
import dataclasses
import fcntl
import os
import pathlib
import random
import select
import struct
import subprocess
import sys
import time

_SET_INTERFACE = 0x400454CA  # TUNSETIFF
_TAP = 0x0002 | 0x1000  # IFF_TAP | IFF_NO_PI: bare Ethernet frames
_FRAME_BYTES = 1 << 16
# Frames under way; a router drops what comes then, too.
_MOST_FRAMES = 20_000
_ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = f'from {__name__} import carry; carry()'  # of `python -c`, in _ROOT


@dataclasses.dataclass(frozen=True)
class Weather:
  """What a host's link does to all that it sends.

  Attributes:
    delay_s: of each frame.
    loss: the share of frames that are lost, 0 to 1.
  """

  delay_s: float
  loss: float

  @staticmethod
  def parse(text: str) -> Weather:
    """From 'MILLISECONDS,PERCENT', such as '50,1'.

    Raises:
      ValueError: it is something else.
    """
    try:
      delay, loss = (float(word) for word in text.split(','))
    except ValueError:
      delay = loss = -1.0
    if not (0 <= delay <= 60_000 and 0 <= loss < 100):
      raise ValueError(
        f'{text!r} is no weather. Give milliseconds and percent: 50,1'
      )
    return Weather(delay / 1e3, loss / 100)


def start(inside: str, outside: str, weather: Weather) -> subprocess.Popen:
  """Makes both devices, and the process that carries frames between them.

  Args:
    inside: name of the device for the host, which may be moved to its network.
    outside: name of the other one.
    weather: of frames that come from inside. The other way nothing happens.
  """
  ends = [_tap(name) for name in (inside, outside)]
  try:
    return subprocess.Popen(
      [
        *(sys.executable, '-c', COMMAND),
        *(str(x) for x in (*ends, weather.delay_s, weather.loss)),
      ],
      pass_fds=ends,
      stdin=subprocess.DEVNULL,
      cwd=_ROOT,
    )
  finally:
    for end in ends:
      os.close(end)


def _tap(name: str) -> int:
  end = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)
  fcntl.ioctl(end, _SET_INTERFACE, struct.pack('16sH', name.encode(), _TAP))
  return end


def carry() -> None:
  """The process: until a device is gone."""
  inside, outside = (int(word) for word in sys.argv[1:3])
  delay_s, loss = (float(word) for word in sys.argv[3:5])
  under_way: collections.deque[tuple[float, bytes]] = collections.deque()
  chance = random.Random(0)
  while True:
    left = None
    if under_way:
      left = max(0.0, under_way[0][0] - time.monotonic())
    ready = select.select([inside, outside], [], [], left)[0]
    now = time.monotonic()
    while under_way and under_way[0][0] <= now:
      _send(outside, under_way.popleft()[1])
    try:
      if outside in ready:
        _send(inside, os.read(outside, _FRAME_BYTES))
      if inside in ready:
        frame = os.read(inside, _FRAME_BYTES)
        if chance.random() >= loss and len(under_way) < _MOST_FRAMES:
          under_way.append((now + delay_s, frame))
    except BlockingIOError:
      pass  # somebody was faster
    except OSError:
      return  # the host is gone, and its device


def _send(end: int, frame: bytes) -> None:
  try:
    os.write(end, frame)
  except OSError:
    pass  # the device is down or full: a lost frame, as on any link
