"""The networks of an actor-critic agent, as parts of one flat vector.

theta holds, in this order: the group 'policy'; the group 'critic' of one or two
critics; 'temperature', the logarithm of SAC's, if there is one; 'normalizer' if
observations are normalised; 'priority', the largest priority so far, if replay
is prioritized. The last two are not learned by gradient: the learner writes
them as statistics, and they reach the actors as part of theta.

Images first pass an encoder that policy and critics share and that the critics'
loss alone moves (Yarats et al. 2021, arXiv:1910.01741; DrQ, arXiv:2004.13649;
Acme's D4PG likewise). It is in the group 'policy', which holds all that acts:
an evolution strategy perturbs the encoder too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np
import tensorflow as tf

from murmuration.agents import parameters
from murmuration.agents.actor_critic import config as actor_critic_config
from murmuration.agents.networks import conv
from murmuration.agents.networks import mlp
from murmuration.agents.networks import normalization
from murmuration.environment_loops import environments

MAXIMUM = 'priority/maximum'
# Numbers that the encoder makes of an image, as in both papers above.
FEATURES = 50

# The first action is close to the middle of its range, whatever is observed.
_LAST_LAYER_SCALE = 0.01

# Part's name to its variables.
Parts = Mapping[str, Sequence[Any]]


class Networks:
  """A policy whose means end in a tanh, and its critics."""

  def __init__(
    self,
    config: actor_critic_config.Config,
    spec: environments.Spec,
    encoder: conv.ConvNet | None,
    critic_outputs: int = 1,
    num_critics: int = 1,
    policy_outputs: int = 1,
    temperature: float | None = None,
  ):
    """Makes the networks of an agent; no TensorFlow work yet.

    Args:
      encoder: of images, whose outputs pass a tanh; None: there are none.
      critic_outputs: outputs of one critic.
      num_critics: how many critics there are.
      policy_outputs: for each number of an action; the first is its mean
        before the tanh.
      temperature: the first; None: there is none.
    """
    self._encoder = encoder
    size = encoder.output_size if encoder else math.prod(spec.observation_shape)
    self._observation_size = size
    self._action_size = math.prod(spec.action_shape)
    self._policy = mlp.MLP(
      size,
      tuple(config.policy_sizes),
      policy_outputs * self._action_size,
      config.activation,
      'policy',
    )
    self._critics = [
      mlp.MLP(
        size + self._action_size,
        tuple(config.critic_sizes),
        critic_outputs,
        config.activation,
        f'critic_{i}',
      )
      for i in range(num_critics)
    ]
    normalize = config.normalize_observations
    self._normalizer = normalization.Normalizer(size) if normalize else None
    self._temperature = temperature
    self._prioritized = config.prioritized
    self._applies: dict[str, mlp.Apply] = {}
    self.layout, self._places = self._make_layout()

  def _make_layout(self) -> tuple[parameters.Layout, dict[str, slice]]:
    """The layout, and which of its variables belong to which part."""
    parts = {n.name: n.shapes() for n in self._networks()}
    if self._temperature is not None:
      parts['temperature'] = [('temperature/log', (1,))]
    if self._normalizer:
      parts['normalizer'] = self._normalizer.shapes()
    if self._prioritized:
      parts['priority'] = [(MAXIMUM, (1,))]
    places: dict[str, slice] = {}
    groups: dict[str, list[str]] = {}
    shapes: mlp.Shapes = []
    for part, found in parts.items():
      places[part] = slice(len(shapes), len(shapes) + len(found))
      group = 'critic' if part.startswith('critic') else part
      if part == 'encoder':
        group = 'policy'
      groups.setdefault(group, []).extend(name for name, _ in found)
      shapes += found
    return parameters.Layout(shapes, groups), places

  def _networks(self) -> list[mlp.MLP | conv.ConvNet]:
    """The networks, in layout order."""
    encoder = [self._encoder] if self._encoder else []
    return [*encoder, self._policy, *self._critics]

  def place(self, part: str) -> slice:
    """Where the parameters of a part are in `theta [D]`."""
    variables = self.layout.variables[self._places[part]]
    return slice(variables[0].offset, variables[-1].slice.stop)

  def initial(self, rng: np.random.Generator) -> np.ndarray:
    """New random parameters `theta [D]`."""
    arrays = self._encoder.initial(rng) if self._encoder else []
    arrays += self._policy.initial(rng)
    arrays[-1] *= _LAST_LAYER_SCALE
    for critic in self._critics:
      arrays += critic.initial(rng)
    if self._temperature is not None:
      arrays.append(np.full(1, math.log(self._temperature), np.float32))
    if self._normalizer:
      arrays += self._normalizer.initial()
    if self._prioritized:
      arrays.append(np.ones(1, np.float32))
    return self.layout.pack(arrays)

  def split(self, variables: Sequence[Any]) -> dict[str, Any]:
    """Variables in layout order to parts."""
    return {part: variables[place] for part, place in self._places.items()}

  def flat(self, observation: tf.Tensor) -> tf.Tensor:
    """[B, ...] to [B, observation_size]; images stay as they are."""
    if self._encoder is not None:
      return observation
    return tf.reshape(observation, (-1, self._observation_size))

  def scaled(self, parts: Parts, observation: Any) -> Any:
    """Flat observations as the networks take them (normalization.py)."""
    if self._normalizer is None:
      return observation
    return self._normalizer.normalize(parts['normalizer'], observation)

  def policy(self, parts: Parts, observation: tf.Tensor) -> tf.Tensor:
    """Before its tanh, [B, policy_outputs * A], for scaled [B, O] or images."""
    features = self._features(parts, observation)
    if self._encoder is not None:
      features = tf.stop_gradient(features)
    return self._apply('policy', parts, features)

  def critics(
    self,
    parts: Parts,
    observation: tf.Tensor,
    action: tf.Tensor,
    count: int | None = None,
  ) -> list[tf.Tensor]:
    """Outputs [B, ...] of the first `count` critics (None: all).

    Args:
      parts: whose critics.
      observation: scaled, [B, O], or images.
      action: [B, ...].
    """
    action = tf.reshape(action, (-1, self._action_size))
    inputs = tf.concat([self._features(parts, observation), action], axis=-1)
    return [self._apply(c.name, parts, inputs) for c in self._critics[:count]]

  def prepare(self, variables: Sequence[np.ndarray]) -> Mapping[str, Any]:
    """What `outputs` takes for views `[P, *shape]`; keep it while theta is."""
    parts = self.split(variables)
    if self._encoder is not None:
      parts['encoder'] = self._encoder.prepare(parts['encoder'])
    return parts

  def outputs(
    self, parts: Mapping[str, Any], observation: np.ndarray
  ) -> np.ndarray:
    """`policy` as it acts: [P, K, ...] of what was prepared and [P, K, ...]."""
    if self._encoder is not None:
      x = np.tanh(self._encoder.forward(parts['encoder'], observation))
    else:
      flat = observation.reshape(observation.shape[:2] + (-1,))
      x = self.scaled(parts, flat)
    return self._policy.forward(parts['policy'], x)

  def means(
    self, parts: Mapping[str, Any], observation: np.ndarray
  ) -> np.ndarray:
    """mu(s) as it acts, [P, K, A], likewise."""
    x = self.outputs(parts, observation)[..., : self._action_size]
    return np.tanh(x, out=x)

  def operations(self, variables: Sequence[np.ndarray]) -> list[list[Any]]:
    """`means` as murmuration/portable.py has it, for views `[*shape]`."""
    parts = self.split(variables)
    found: list[list[Any]]
    if self._encoder is not None:
      found = [*self._encoder.operations(parts['encoder']), ['tanh']]
    else:
      found = [['float'], ['flatten', self._observation_size]]
    if self._normalizer is not None:
      found += self._normalizer.operations(parts['normalizer'])
    found += self._policy.operations(parts['policy'])
    return [*found, ['take', self._action_size], ['tanh']]

  def largest_priority(self, theta: np.ndarray) -> float | None:
    """The largest priority so far, from `theta [D]`; None if none is kept."""
    if not self._prioritized:
      return None
    return float(theta[self.layout.groups['priority']][0])

  def statistics(
    self,
    parts: Parts,
    observation: tf.Tensor,
    priorities: tf.Tensor,
    weight: tf.Tensor,
  ) -> dict[str, tf.Tensor]:
    """What the learner writes into theta beside the gradient, by name.

    Args:
      parts: as they are.
      observation: raw, [B, O].
      priorities: new ones, [B].
      weight: 1, or 0 where there is no transition, [B].
    """
    found: dict[str, tf.Tensor] = {}
    if self._normalizer:
      found.update(
        self._normalizer.updated(parts['normalizer'], observation, weight)
      )
    if self._prioritized:
      largest = tf.reduce_max(tf.where(weight > 0, priorities, 0.0))
      found[MAXIMUM] = tf.maximum(parts['priority'][0], largest)
    return found

  def _features(self, parts: Parts, observation: tf.Tensor) -> tf.Tensor:
    """What policy and critics take, [B, ...]."""
    if self._encoder is None:
      return observation
    # Asked for several times in a loss: TensorFlow merges equal convolutions.
    return tf.tanh(self._apply('encoder', parts, observation))

  def _apply(self, part: str, parts: Parts, inputs: tf.Tensor) -> tf.Tensor:
    if part not in self._applies:
      network = next(n for n in self._networks() if n.name == part)
      self._applies[part] = network.make_sonnet()
    return self._applies[part](parts[part], inputs)
