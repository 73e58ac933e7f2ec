"""What is refused, before anything starts."""

import dataclasses

import launchpad as lp
import pytest

from murmuration.launch import rpc
from murmuration.launch.engines import prepare
from murmuration.launch.rpc import directory


@dataclasses.dataclass
class Config:
  server: object


def test_a_handle_inside_a_dataclass_is_refused(tmp_path):
  program = lp.Program('test')
  with program.group('server'):
    server = program.add_node(rpc.Node(object))
  with program.group('client'):
    program.add_node(lp.PyNode(print, {'config': Config([server])}))
  with pytest.raises(ValueError, match='inside a Config .* client/0'):
    prepare.prepare(
      program,
      directory.Local(tmp_path),
      lp.stop,
    )
