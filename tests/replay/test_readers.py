"""What is said of a table that gives no samples."""

import numpy as np

from replay import limiters
from replay import readers
from replay import tables


def test_who_waits_for_whom_is_said_in_words(serve):
  limiter = limiters.samples_per_insert(2.0, 5, 2, error_buffer=12)
  table = tables.uniform('table', 100, 5, None, limiter)
  server = serve(table)
  client = server.localhost_client()
  address = f'localhost:{server.port}'

  def said():
    info = readers.table_info(address, 'table')
    start = f"Waiting for table 'table' at {address}: it holds "
    sentence = readers.starved('table', address, info)
    assert sentence.startswith(start)
    return sentence.removeprefix(start)

  assert said() == '0 items and gives samples from 5 on.'
  for _ in range(7):
    client.insert(np.zeros(1, np.float32), {'table': 1.0})
  assert said() == '7 items, and its limiter lets samples through.'
  while table.can_sample(1):
    list(client.sample('table', 1))
  assert said() == (
    '7 items, but sampling is 12 samples ahead of 2 per insert. The learner '
    'waits for writers.'
  )
