"""Acme's IMPALA by its parts: network, queue, adder, learner."""

from __future__ import annotations

from acme import datasets
from acme import specs
from acme.adders import reverb as adders
from acme.agents.tf import impala
from acme.tf import networks
from acme.tf import utils
import reverb
import sonnet as snt
import tensorflow as tf

from murmuration.environment_loops import environments
from tests.benchmarks.peers import acme_parts

UNROLL = 20  # transitions of a sequence; one more row bootstraps


def spec_of(task: str) -> specs.EnvironmentSpec:
  return specs.make_environment_spec(environments.make(task, seed=0))


def _image_torso(images: tf.Tensor) -> tf.Tensor:
  """Bytes to floats, as `agents/networks/conv.py` has them."""
  return tf.cast(images, tf.float32) / 255.0


def _torso(spec: specs.EnvironmentSpec) -> list:
  """64x64 for vectors; the shallow model of IMPALA's paper for images."""
  if len(spec.observations.shape) == 1:
    return [snt.Flatten(), snt.nets.MLP([64, 64], activate_final=True)]
  return [
    _image_torso,
    snt.Conv2D(16, 8, 4, padding='VALID'),
    tf.nn.relu,
    snt.Conv2D(32, 4, 2, padding='VALID'),
    tf.nn.relu,
    snt.Flatten(),
    snt.nets.MLP([256], activate_final=True),
  ]


def make_network(spec: specs.EnvironmentSpec) -> snt.DeepRNN:
  """A torso with a policy and a value head; a core without state."""
  network = snt.DeepRNN(
    [*_torso(spec), networks.PolicyValueHead(spec.actions.num_values)]
  )
  utils.create_variables(network, [spec.observations])
  return network


def make_queue(spec: specs.EnvironmentSpec, batch_size: int) -> reverb.Table:
  """A queue of four batches, so that actors wait for the learner."""
  signature = adders.SequenceAdder.signature(
    spec,
    extras_spec={
      'core_state': (),
      'logits': tf.ones((spec.actions.num_values,)),
    },
    sequence_length=UNROLL + 1,
  )
  return reverb.Table.queue(
    adders.DEFAULT_PRIORITY_TABLE, 4 * batch_size, signature=signature
  )


def make_adder(client: reverb.Client) -> adders.SequenceAdder:
  return adders.SequenceAdder(
    client=client, period=UNROLL, sequence_length=UNROLL + 1
  )


def make_learner(
  spec: specs.EnvironmentSpec,
  network: snt.DeepRNN,
  client: reverb.Client,
  batch_size: int,
  counter: acme_parts.UpdateCounter,
) -> impala.IMPALALearner:
  """Acme's learner with its agent's costs, and one reader of the queue."""
  return impala.IMPALALearner(
    environment_spec=spec,
    network=network,
    dataset=datasets.make_reverb_dataset(
      server_address=client.server_address,
      batch_size=batch_size,
      num_parallel_calls=1,
    ),
    learning_rate=1e-3,
    entropy_cost=0.01,
    baseline_cost=0.5,
    logger=counter,
  )
