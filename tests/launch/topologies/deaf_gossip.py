"""Gossip in which no message arrives, as a topology for a command line."""

from murmuration.launch.services import gossip as service
from tests.faults import recorded_gossip


class Deaf(service.Gossip):
  """A worker that its neighbours cannot reach."""

  def __init__(self, *args, run_dir, **options):
    del run_dir
    super().__init__(*args, first_patience_s=2.0, **options)

  def push_message(self, sender, *message):
    pass


class DeafGossip(recorded_gossip.RecordedGossip):
  """gossip, with workers that do not hear each other."""

  exchange = Deaf
