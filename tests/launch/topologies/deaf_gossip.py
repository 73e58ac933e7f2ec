"""Gossip in which no message arrives, as a topology for a command line."""

import functools

from launch.services import gossip as service
from launch.topologies import gossip


class Deaf(service.Gossip):
  """A worker that its neighbours cannot reach."""

  def push_message(self, sender, *message):
    pass


class DeafGossip:
  """gossip, with workers that do not hear each other."""

  SECTION = gossip.SECTION
  Config = gossip.Config
  members = staticmethod(gossip.members)

  @staticmethod
  def build(experiment, config):
    program = gossip.build(experiment, config)
    for node in program.groups['worker']:
      made = node._kwargs['exchange']
      node._kwargs['exchange'] = functools.partial(
        Deaf, *made.args, **made.keywords, first_patience_s=2.0
      )
    return program
