"""How many actors and learners there are, and how replay paces them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from agents import checks

INFERENCE = ('local', 'central')
INFERENCE_TRANSPORTS = ('auto', 'shared_memory', 'rpc')


@dataclasses.dataclass(frozen=True)
class Config:
  """The actor side of `actor_learner`, and how replay paces it."""

  num_actors: int = 2  # N, a process each
  envs_per_actor: int = 8  # K, stepped together
  update_period: int = 64  # environment steps of an actor between fetches
  max_param_age_s: float = 60.0  # older than this, the actor waits
  samples_per_insert: float | None = 8.0  # None: unthrottled, as in the paper
  error_buffer: float | None = None  # samples either side may be ahead
  transitions_per_item: int = 1  # G: of replay, drawn together; paper: 1
  num_learners: int = 1  # L, a process each; they average their gradients
  shards: int = 1  # replay servers; actor i writes to shard i mod S
  queue_batches: int = 4  # of unrolls: batches that may wait to be learned from
  max_lag: int | None = None  # of unrolls: older blocks, in learner steps, drop
  inference: str = 'local'  # in each actor, or 'central': on a server
  inference_transport: str = 'auto'  # to it: 'shared_memory', 'rpc', by host
  inference_max_wait_ms: float = 2.0  # of a request for others to come
  inference_max_batch: int | None = None  # environments; None: half suffice

  def __post_init__(self):
    checks.whole(
      self,
      'actors',
      (
        'num_actors',
        'envs_per_actor',
        'update_period',
        'transitions_per_item',
        'num_learners',
        'shards',
        'queue_batches',
      ),
    )
    checks.positive(
      self, 'actors', ('max_param_age_s', 'samples_per_insert', 'error_buffer')
    )
    self._check_inference()
    if self.shards > self.num_actors:
      raise ValueError(
        f'actors.shards={self.shards} are more than actors.num_actors='
        f'{self.num_actors}: actor i writes to shard i mod shards, so some '
        'would stay empty. Use as many shards as actors at most.'
      )

  def _check_inference(self):
    for name, known in (
      ('inference', INFERENCE),
      ('inference_transport', INFERENCE_TRANSPORTS),
    ):
      if getattr(self, name) not in known:
        raise ValueError(
          f'actors.{name}={getattr(self, name)!r} is not known. Choose one of '
          f'{list(known)}.'
        )
    wait = self.inference_max_wait_ms
    if not (math.isfinite(wait) and wait >= 0):
      raise ValueError(
        f'actors.inference_max_wait_ms={wait} must be a number that is not '
        'negative. 0 answers each request at once.'
      )
    if self.inference_max_batch is not None:
      checks.whole(self, 'actors', ('inference_max_batch',))


def share(agent: Any, num_learners: int) -> int:
  """Of the agent's batch, what each learner takes.

  Raises:
    ValueError: it cannot be shared out.
  """
  if num_learners == 1:
    return agent.batch_size
  if agent.on_policy:
    raise ValueError(
      f'actors.num_learners={num_learners}: {agent.name} learns on policy, and '
      'one learner may read ahead what another needs for the same rollout, so '
      'that both wait for ever. Set actors.num_learners to 1.'
    )
  if agent.learner_class is not None:
    raise ValueError(
      f'actors.num_learners={num_learners}: {agent.name} has a learner of its '
      'own, which gives no gradient to others. Set actors.num_learners to 1.'
    )
  share, rest = divmod(agent.batch_size, num_learners)
  if rest:
    raise ValueError(
      f'agent.batch_size={agent.batch_size} cannot be shared out over '
      f'actors.num_learners={num_learners}. Make it a multiple.'
    )
  return share
