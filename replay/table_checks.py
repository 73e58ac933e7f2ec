"""What a writer asks of a table: does it fit, is it there, why does it wait?"""

from typing import Any

import reverb
import tensorflow as tf

from replay import packing

# What `server_info` raises where the server does not answer.
_NO_ANSWER = (RuntimeError, reverb.errors.DeadlineExceededError)


def check(
  client: reverb.Client, table: str, signature: Any, timeout_s: int
) -> None:
  """Checks that a table takes items of a signature.

  Args:
    client: client of the server that holds the table.
    table: name of the table.
    signature: (nested) tf.TensorSpec of the items to write.
    timeout_s: how long to wait for the server.

  Raises:
    ConnectionError: the server does not answer.
    ValueError: no such table, or one of other items.
  """
  address = client.server_address
  try:
    tables = client.server_info(timeout=timeout_s)
  except _NO_ANSWER as e:
    raise ConnectionError(
      f'The Reverb server at {address} did not answer within {timeout_s} s. '
      'Start it first, or correct the address.'
    ) from e
  if table not in tables:
    raise ValueError(
      f'The Reverb server at {address} has no table {table!r}, only '
      f'{", ".join(sorted(tables)) or "none"}. Write to one of these.'
    )
  held = tables[table].signature
  if held is None:
    return
  columns, written = tf.nest.flatten(held), tf.nest.flatten(signature)
  if len(columns) != len(written) or not all(
    a.is_compatible_with(b) for a, b in zip(columns, written)
  ):
    raise ValueError(
      f'Table {table!r} holds {held}, but this adder writes {signature}. Make '
      'the table with the signature of the same layout and number of members.'
    )
  # Two layouts may be of the same width.
  theirs = packing.from_signature(columns[0])
  ours = packing.from_signature(written[0])
  if theirs is not None and ours is not None and theirs != ours:
    raise ValueError(
      f'Table {table!r} holds {theirs}, but this adder writes {ours}. Make the '
      'table with the signature of the same environment.'
    )


def answers(client: reverb.Client, table: str) -> bool:
  """Whether the server answers within a second and has the table."""
  try:
    return table in client.server_info(timeout=1)
  except _NO_ANSWER:
    return False


def why_blocked(client: reverb.Client, table: str, waited_s: float) -> str:
  """Why a table took no item for `waited_s`, by what it says now."""
  address = client.server_address
  try:
    info = client.server_info(timeout=1)[table]
  except _NO_ANSWER:
    return (
      f'No item reached table {table!r} within {waited_s:.3g} s: the Reverb '
      f'server at {address} does not answer. Look into the log of the replay '
      'node.'
    )
  except KeyError:
    return (
      f'The Reverb server at {address} has no table {table!r}. Write to one of '
      'the tables that it was made with.'
    )
  limiter = info.rate_limiter_info
  return (
    f'Table {table!r} at {address} took no item for {waited_s:.3g} s: its rate '
    f'limiter (samples_per_insert={limiter.samples_per_insert:g}, '
    f'min_size={limiter.min_size_to_sample}, min_diff={limiter.min_diff:g}, '
    f'max_diff={limiter.max_diff:g}) blocks inserts at size '
    f'{info.current_size} of {info.max_size}, after '
    f'{limiter.insert_stats.completed} inserts and '
    f'{limiter.sample_stats.completed} samples. Sample from it, or raise the '
    'error buffer or the size of the table.'
  )
