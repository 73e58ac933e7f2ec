"""Serves an exported policy over HTTP; requests that wait become one batch.

    murmuration export runs/NAME                     # runs/NAME/policy.py
    python examples/serve.py runs/NAME/policy.py     # on port 8000
    curl -d '[0.1, 0.0, 0.02, 0.0]' localhost:8000   # 1

Needs the exported file and NumPy. While the policy computes, requests queue;
the next call takes all that wait, so that a busy server makes large batches and
an idle one answers at once. A policy that remembers (an LSTM, stacked
observations) is refused: requests do not say whose episode they belong to.
"""

import argparse
from collections.abc import Callable
from concurrent import futures
from http import server
import importlib.util
import json
import queue
import sys
import threading
from typing import Any

import numpy as np

_LARGEST = 256  # observations in one call
_MOST_BYTES = 10**7  # of a request
_GREATEST = np.finfo(np.float32).max  # number that a policy can take


class Batcher:
  """Calls a policy with all observations that wait, in a thread of its own."""

  def __init__(self, policy: Callable[[np.ndarray], np.ndarray]):
    """Starts the thread.

    Args:
      policy: observations [N, ...] to actions [N, ...].
    """
    self._policy = policy
    self._waiting: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=self._run, daemon=True).start()

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    """The action for one observation; raises what the policy raises."""
    answer: futures.Future = futures.Future()
    self._waiting.put((observation, answer))
    return answer.result()

  def _run(self) -> None:
    while True:
      batch = [self._waiting.get()]
      while len(batch) < _LARGEST and not self._waiting.empty():
        batch.append(self._waiting.get())
      observations, answers = zip(*batch)
      try:
        actions = self._policy(np.stack(observations))
      except Exception as e:
        for answer in answers:
          answer.set_exception(e)
      else:
        for answer, action in zip(answers, actions):
          answer.set_result(action)


def serve(policy: Any, port: int) -> server.ThreadingHTTPServer:
  """A server of one policy, on this machine's own address; not yet started.

  Args:
    policy: of an exported file.
    port: to listen on; 0 takes a free one.

  Raises:
    ValueError: the policy remembers.
  """
  if policy.size:
    raise ValueError(
      'this policy remembers its episodes, and requests do not say which one '
      'they belong to. Call it where the episodes are played.'
    )
  shape = tuple(policy.about['observation_shape'])
  of_bytes = policy.about.get('observation_dtype') == 'uint8'
  act = Batcher(policy)

  class Handler(server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'  # connections stay open

    def do_POST(self):
      length = self.headers.get('Content-Length', '0')
      try:
        size = int(length)
      except ValueError:
        size = -1
      if not 0 <= size <= _MOST_BYTES:
        self._answer(
          400 if size < 0 else 413,
          f'Content-Length is {length[:20]}; needed is 0 to {_MOST_BYTES}.',
        )
        self.close_connection = True  # where the body ends is not known
        return
      try:
        observation = np.array(json.loads(self.rfile.read(size)), float)
        # Here, as one wrong shape would spoil the batch of the others.
        if observation.shape != shape:
          raise ValueError(
            f'observation has shape {observation.shape}; needed is {shape}.'
          )
        # null has become NaN, which a policy answers with some action.
        if not (np.abs(observation) <= _GREATEST).all():
          raise ValueError(f'the observation is not finite: {observation}.')
        if of_bytes:
          given = observation
          observation = given.clip(0, 255).astype(np.uint8)
          if (observation != given).any():
            raise ValueError(
              f'the observation is from {given.min()} to {given.max()}; '
              'needed are bytes, whole numbers from 0 to 255.'
            )
        self._answer(200, np.asarray(act(observation)).tolist())
      except (ValueError, TypeError, OverflowError, RecursionError) as e:
        self._answer(400, str(e))

    def _answer(self, code: int, content: Any) -> None:
      body = json.dumps(content).encode()
      self.send_response(code)
      self.send_header('Content-Type', 'application/json')
      self.send_header('Content-Length', str(len(body)))
      self.end_headers()
      self.wfile.write(body)

    def log_message(self, *unused: Any) -> None:
      pass

  return server.ThreadingHTTPServer(('127.0.0.1', port), Handler)


def load(path: str) -> Any:
  """The policy of a file that `murmuration export` made.

  Raises:
    ValueError: the file is none.
    OSError: it cannot be read.
  """
  none = f'{path} is no policy.py that murmuration export made'
  if not path.endswith('.py'):
    raise ValueError(f'{none}.')
  spec: Any = importlib.util.spec_from_file_location('policy', path)
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
    policy = module.policy
    _ = policy.size, policy.about['observation_shape']  # what `serve` asks for
  except OSError:
    raise
  except Exception as e:  # whatever another file leads to
    raise ValueError(f'{none} ({type(e).__name__}: {e}).') from None
  return policy


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('policy', help='policy.py of a run')
  parser.add_argument('--port', type=int, default=8000)
  args = parser.parse_args()
  try:
    listening = serve(load(args.policy), args.port)
  except (OSError, ValueError, OverflowError) as e:  # the last: of the port
    print(f'error: {e}', file=sys.stderr)
    return 2
  print(f'http://127.0.0.1:{listening.server_port}', flush=True)
  try:
    listening.serve_forever()
  except KeyboardInterrupt:
    pass
  return 0


if __name__ == '__main__':
  sys.exit(main())
