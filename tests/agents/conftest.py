"""Cases of the vectors, and a learner whose gradients a test chooses."""

import json
import pathlib
import types

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import feeds
from murmuration.agents import learner
from murmuration.agents import optimizers
from murmuration.agents import parameters
from murmuration.agents.exchange import local as local_exchange

VECTORS = pathlib.Path(__file__).parents[1] / 'vectors'


def pytest_configure(config):
  config.addinivalue_line(
    'markers',
    'vectors(name, **inputs): run with `vector` at each case of '
    'tests/vectors/NAME.json whose inputs have these values.',
  )


def pytest_generate_tests(metafunc):
  """`vector` has the case's inputs, expected and tolerance (by dtype)."""
  marker = metafunc.definition.get_closest_marker('vectors')
  if marker is None:
    return
  path = VECTORS / f'{marker.args[0]}.json'
  file = json.loads(path.read_text())
  cases = [
    pytest.param(
      types.SimpleNamespace(
        inputs=case['inputs'],
        expected=case['expected'],
        tolerance=file['tolerance'],
      ),
      id=case['name'],
    )
    for case in file['cases']
    if marker.kwargs.items() <= case['inputs'].items()
  ]
  assert cases, f'No case of {path.name} has {marker.kwargs}.'
  metafunc.parametrize('vector', cases)


class Linear:
  """The least an agent is to a learner: its sample is its gradient.

  A packed "transition" [D] is the gradient that it gives, so that a test writes
  down which gradient each member sees at each update, NaN included.
  """

  name, batch_size = 'linear', 1
  max_gradient_norm = None
  learning_rate_scale = None
  compiled = False
  images = False
  delayed = None
  rate_end = None
  maxima = ()
  rate_settings = base.Agent.rate_settings
  rate_factor = base.Agent.rate_factor
  metrics = {'mean_gradient': 'mean', 'largest_gradient': 'max'}

  def __init__(self, size, optimizer, target_update):
    # Two variables, so that the learner has something to split.
    self.layout = parameters.Layout([('first', (1,)), ('rest', (size - 1,))])
    self.optimizer = optimizer
    self.target_update = target_update

  def loss(self, variables, target_variables, batch, importance=None):
    del target_variables, importance
    gradient = tf.reduce_mean(batch, axis=0)
    theta = tf.concat(variables, axis=0)
    metrics = {
      'mean_gradient': tf.reduce_mean(gradient),
      'largest_gradient': tf.reduce_max(gradient),
    }
    loss = tf.reduce_sum(theta * gradient)
    return base.LossOutput(loss, tf.ones([1]), metrics)


class Gradients(feeds.Transitions):
  """Batches of one packed "transition", which is the gradient itself."""

  def __init__(self):
    super().__init__(layout=None, batch_size=1)

  def unpack(self, batch):
    return batch


@pytest.fixture(scope='session')
def linear_learner():
  """Makes a learner whose `step` takes gradients [updates_per_call, P, D]."""

  def make(
    theta,
    learning_rates=None,
    exchange=None,
    optimizer=None,
    target_update=None,
    **options,
  ):
    theta = np.asarray(theta, np.float32)
    agent = Linear(
      theta.shape[1],
      optimizer or optimizers.SGD(),
      target_update or base.TargetUpdate(1_000_000),
    )
    return learner.TFLearner(
      agent,
      theta,
      [0.1] * len(theta) if learning_rates is None else learning_rates,
      exchange or local_exchange.Local(),
      Gradients(),
      **options,
    )

  return make
