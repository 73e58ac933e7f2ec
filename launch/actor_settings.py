"""Settings of a program's actors and learners, and of what connects them."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from murmuration.agents import settings

_CENTRAL = settings.only_with('inference', 'central')


@dataclasses.dataclass(frozen=True)
class Config:
  """The actor side of `actor_learner`."""

  num_actors: settings.Nodes = 2  # N actors, a process each
  # K environments of each actor, stepped together.
  envs_per_actor: Annotated[int, settings.whole(1, 1_000_000)] = 8
  # Environment steps of an actor between fetches of parameters.
  update_period: settings.Whole = 64
  # Age of parameters, in seconds, above which an actor waits for newer ones.
  max_param_age_s: settings.Seconds = 60.0
  # Samples by which acting or learning may be ahead; None: computed from the
  # batch and the writers.
  error_buffer: settings.Positive | None = None
  # G, transitions of one replay item, which are sampled together; paper: 1.
  transitions_per_item: settings.Whole = 1
  # L learners, a process each, which average their gradients.
  num_learners: settings.Nodes = 1
  # S replay servers; actor i writes to server i mod S.
  shards: settings.Nodes = 1
  # Batches of unrolls that may wait in the queue.
  queue_batches: settings.Whole = 4
  # Age in learner steps above which unrolls are dropped; None: never.
  max_lag: settings.Count | None = None
  # Where policies run: 'local', in each actor, or 'central', on a server.
  inference: Literal['local', 'central'] = 'local'
  # Milliseconds that a request waits for others, at most.
  inference_max_wait_ms: Annotated[settings.NotNegative, _CENTRAL] = 2.0
  # Environments in one of the server's batches, at most; None: no limit, and
  # those of half the actors are enough.
  inference_max_batch: Annotated[settings.Whole | None, _CENTRAL] = None

  def __post_init__(self):
    settings.check(self, 'actors')
    if self.shards > self.num_actors:
      raise ValueError(
        f'actors.shards={self.shards} are more than actors.num_actors='
        f'{self.num_actors}: actor i writes to shard i mod shards, so some '
        'would stay empty. Use as many shards as actors at most.'
      )


def ignored(agent: Any, config: Config) -> dict[str, str]:
  """Settings that a run of this agent would ignore, and why."""
  found = {}
  if agent.experience == 'unrolls':
    why = 'it is of transitions in replay, and this agent learns from unrolls'
    found.update(dict.fromkeys(('transitions_per_item', 'error_buffer'), why))
    if agent.on_policy:
      found['queue_batches'] = 'an on-policy agent has a rollout in the queue'
  else:
    why = 'it is of unrolls in a queue, and this agent samples replay'
    found.update(dict.fromkeys(('queue_batches', 'max_lag'), why))
  if config.inference == 'local' and agent.on_policy:
    found['update_period'] = 'an on-policy agent acts for a rollout each time'
  return found


def share(agent: Any, num_learners: int) -> int:
  """Each learner's share of the batch; ValueError if it cannot be divided."""
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
