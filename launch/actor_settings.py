"""How many actors and learners there are, and what lies between them."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from agents import settings


@dataclasses.dataclass(frozen=True)
class Config:
  """The actor side of `actor_learner`."""

  num_actors: settings.Nodes = 2  # N, a process each
  envs_per_actor: settings.Whole = 8  # K, stepped together
  # Environment steps of an actor between fetches.
  update_period: settings.Whole = 64
  max_param_age_s: settings.Seconds = 60.0  # older than this, the actor waits
  # Samples either side may be ahead.
  error_buffer: settings.Positive | None = None
  # G: of replay, drawn together; paper: 1.
  transitions_per_item: settings.Whole = 1
  # L, a process each; they average their gradients.
  num_learners: settings.Nodes = 1
  shards: settings.Nodes = 1  # replay servers; actor i writes to shard i mod S
  # Of unrolls: batches that may wait to be learned from.
  queue_batches: settings.Whole = 4
  # Of unrolls: older blocks, in learner steps, drop.
  max_lag: settings.Count | None = None
  # In each actor, or 'central': on a server.
  inference: Literal['local', 'central'] = 'local'
  # To it: 'shared_memory', 'rpc', by host.
  inference_transport: Literal['auto', 'shared_memory', 'rpc'] = 'auto'
  # Of a request for others to come.
  inference_max_wait_ms: settings.NotNegative = 2.0
  # Environments; None: half suffice.
  inference_max_batch: settings.Whole | None = None

  def __post_init__(self):
    settings.check(self, 'actors')
    if self.shards > self.num_actors:
      raise ValueError(
        f'actors.shards={self.shards} are more than actors.num_actors='
        f'{self.num_actors}: actor i writes to shard i mod shards, so some '
        'would stay empty. Use as many shards as actors at most.'
      )


def ignored(agent: Any, config: Config) -> dict[str, str]:
  """Settings that would change nothing in a run of this agent, and why."""
  found = {}
  if agent.experience == 'unrolls':
    why = 'it is of transitions in replay, and this agent learns from unrolls'
    found.update(dict.fromkeys(('transitions_per_item', 'error_buffer'), why))
  else:
    why = 'it is of unrolls in a queue, and this agent samples replay'
    found.update(dict.fromkeys(('queue_batches', 'max_lag'), why))
  if config.inference == 'local':
    why = 'it is of a server that acts: --config.actors.inference=central'
    for name in ('transport', 'max_wait_ms', 'max_batch'):
      found[f'inference_{name}'] = why
  return found


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
