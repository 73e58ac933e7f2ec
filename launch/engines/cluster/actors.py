"""The actors that Ray starts for a run.

Their classes are local, so that Ray sends them with their code: a process that
only waits need not import the project.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any


def place(**needs: Any) -> Any:
  """An actor that holds what a node asks for, and says where that is."""
  import ray

  class Place:
    """Holds its resources for as long as it lives."""

    def where(self) -> tuple[str, dict[str, str]]:
      """Ray's id of this host; and the variables that name what it may use."""
      variables = ('CUDA_VISIBLE_DEVICES', 'TPU_VISIBLE_CHIPS')
      given = {k: os.environ[k] for k in variables if k in os.environ}
      return ray.get_runtime_context().get_node_id(), given

  return ray.remote(scheduling_strategy='SPREAD', **needs)(Place).remote()


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
      """Does not return: who waits for it learns when this actor is gone."""
      threading.Event().wait()

  here = ray.get_runtime_context().get_node_id()
  return _on(here, Names).remote()


def agent(host: str, plan: dict[str, Any], names_actor: Any) -> Any:
  """The agent of the host with that id of Ray's; see host.py."""

  class Agent:
    """Finds the launcher's modules, and has the agent in it."""

    def __init__(self, plan: dict[str, Any], names_actor: Any) -> None:
      # What Ray has unpacked comes before what this host may have itself.
      sent = os.environ.get('PYTHONPATH', '').split(os.pathsep)
      sys.path[:0] = [*filter(None, sent), *plan['path']]
      from murmuration.launch.engines.cluster import host

      self._host = host.Host(plan, names_actor)

    def call(self, method: str, *args: Any) -> Any:
      return getattr(self._host, method)(*args)

  return _on(host, Agent).remote(plan, names_actor)


def _on(host: str, actor: type) -> Any:
  import ray
  from ray.util import scheduling_strategies

  options: Any = {
    'num_cpus': 0,
    # A caller may wait in one method while another is called.
    'max_concurrency': 8,
    'scheduling_strategy': scheduling_strategies.NodeAffinitySchedulingStrategy(
      host, soft=False
    ),
  }
  return ray.remote(**options)(actor)
