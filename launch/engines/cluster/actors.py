"""The actors that Ray starts for a run: seats of nodes, names, agents."""

import os
import threading
from typing import Any

# A caller may wait in one method while another is called.
_SEAT_THREADS = 2
_NAMES_THREADS = 2
_AGENT_THREADS = 16


def seat() -> Any:
  """An actor that holds a node's resources and says where they are.

  Its class is local, so that Ray sends it with its code: a process that only
  waits need not import the project.
  """
  import ray

  class Seat:
    """Keeps the place of a node."""

    def where(self) -> tuple[str, dict[str, str]]:
      """Ray's id of this host; and the variables that name what it may use."""
      variables = ('CUDA_VISIBLE_DEVICES', 'TPU_VISIBLE_CHIPS')
      given = {k: os.environ[k] for k in variables if k in os.environ}
      return ray.get_runtime_context().get_node_id(), given

    def hold(self) -> None:
      """Does not return: who waits for it learns when this actor is gone."""
      threading.Event().wait()

  options: Any = {'max_concurrency': _SEAT_THREADS}
  return ray.remote(**options)(Seat)


def names() -> Any:
  """An actor that knows where each server of a run listens."""
  import ray

  class Names:
    """Names to what an agent made of them."""

    def __init__(self) -> None:
      self._found: dict[str, dict[str, Any]] = {}

    def claim(self, name: str, place: dict[str, Any]) -> None:
      self._found[name] = place

    def find(self, name: str) -> dict[str, Any] | None:
      return self._found.get(name)

    def hold(self) -> None:
      """Does not return, as a seat's."""
      threading.Event().wait()

  options: Any = {'num_cpus': 0, 'max_concurrency': _NAMES_THREADS}
  return ray.remote(**options)(Names)


def agent() -> Any:
  """The actor of a host; see host.py."""
  import ray

  from launch.engines.cluster import host

  options: Any = {'num_cpus': 0, 'max_concurrency': _AGENT_THREADS}
  return ray.remote(**options)(host.Agent)
