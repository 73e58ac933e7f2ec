"""Adders through a real Reverb server."""

import dataclasses
import time

import numpy as np
import pytest
import reverb

from murmuration.replay import adders
from murmuration.replay import nstep
from murmuration.replay import packing
from murmuration.replay import ring as ring_lib
from murmuration.replay import tables
from murmuration.replay import writer
from tests import counting

LAYOUT = packing.TransitionLayout((3,))
NUM_ENVS, N, GAMMA = 4, 3, 0.9


@pytest.fixture(autouse=True)
def clock(monkeypatch):
  """Items are compared: those written at one moment are equal."""
  monkeypatch.setattr(packing, 'written_now', lambda: 1234.5)


def _play(num_steps, num_envs=NUM_ENVS):
  env = counting.make_vector(num_envs)
  observation = env.reset()
  for t in range(num_steps):
    action = np.full(num_envs, t % 2, np.int32)
    step = env.step(action)
    yield observation, action, step
    observation = step.next_observation


def _expected(num_steps, read):
  window = nstep.NStepWindow(NUM_ENVS, N, GAMMA, LAYOUT)
  items = []
  for step in _play(num_steps):
    window.observe(*step)
    items.append(read(window))
  return items


def _contents(client, table, count):
  """All that a queue holds, in order."""
  assert client.server_info()[table].current_size == count
  samples = client.sample(table, count, emit_timesteps=False)
  return np.stack([sample.data[0] for sample in samples])


def _adder(
  serve, layout=LAYOUT, num_envs=NUM_ENVS, item_size=1, exponent=1.0, **kwargs
):
  signature = layout.signature(*((item_size,) if item_size > 1 else ()))
  server = serve(tables.prioritized('table', 5000, 1, signature, exponent))
  client = server.localhost_client()
  adder = adders.TransitionAdder(
    client,
    'table',
    layout,
    N,
    GAMMA,
    num_envs,
    item_size=item_size,
    priority_exponent=exponent,
    **kwargs,
  )
  return client, adder


def _size(client):
  return client.server_info()['table'].current_size


def test_population_steps_arrive_once_each_in_order(serve):
  num_steps = 500
  server = serve(tables.queue('queue', 1000, LAYOUT.signature(NUM_ENVS)))
  client = server.localhost_client()
  adder = adders.PopulationAdder(client, 'queue', LAYOUT, N, GAMMA, NUM_ENVS)
  made = [adder.add(*step) for step in _play(num_steps)]
  assert made == [0] * (N - 1) + [1] * (num_steps - N + 1)
  adder.flush()
  wanted = _expected(num_steps, lambda window: window.aligned())[N - 1 :]
  np.testing.assert_array_equal(_contents(client, 'queue', len(wanted)), wanted)


def test_transitions_arrive_once_each_in_order(serve):
  num_steps = 200
  server = serve(tables.queue('queue', 2000, LAYOUT.signature()))
  client = server.localhost_client()
  adder = adders.TransitionAdder(client, 'queue', LAYOUT, N, GAMMA, NUM_ENVS)
  made = sum(adder.add(*step) for step in _play(num_steps))
  adder.flush()
  wanted = np.concatenate(
    _expected(num_steps, lambda window: window.finished())
  )
  assert made == len(wanted)
  np.testing.assert_array_equal(_contents(client, 'queue', made), wanted)


def test_transitions_share_items_in_order_and_the_rest_waits(serve):
  size = 8
  signature = LAYOUT.signature(size)
  server = serve(tables.queue('queue', 2000, signature))
  client = server.localhost_client()
  asked = []

  def priority(packed):
    asked.append(len(packed))
    return np.ones(len(packed))

  adder = adders.TransitionAdder(
    client,
    'queue',
    LAYOUT,
    N,
    GAMMA,
    NUM_ENVS,
    priority,
    item_size=size,
    burst=32,
  )
  steps = list(_play(201))
  wanted = np.concatenate(_expected(201, lambda window: window.finished()))
  rest = len(wanted) % size
  assert rest  # or nothing would wait
  made = 0
  for step in steps:
    made += adder.add(*step)
    assert made - sum(asked) < 32  # a burst counts transitions, not items
  adder.flush()
  adder.flush()
  assert made == len(wanted)
  found = _contents(client, 'queue', made // size)
  np.testing.assert_array_equal(
    found, wanted[:-rest].reshape((-1, size, LAYOUT.width))
  )
  # The rest is in the next item.
  observation, action, step = steps[-1]
  adder.add(observation, action, step)
  adder.flush()
  (after,) = client.sample('queue', 1, emit_timesteps=False)
  np.testing.assert_array_equal(after.data[0][:rest], wanted[-rest:])


def test_an_item_of_several_has_the_power_mean_of_their_priorities(serve):
  size, exponent = 4, 0.6
  client, adder = _adder(
    serve,
    item_size=size,
    exponent=exponent,
    priority=lambda packed: LAYOUT.unpack(packed).r_t % 7,
  )
  for step in _play(50):
    adder.add(*step)
  adder.flush()
  seen = set()
  for sample in client.sample('table', 100, emit_timesteps=False):
    own = LAYOUT.unpack(sample.data[0]).r_t % 7
    wanted = np.mean(own**exponent) ** (1 / exponent)
    assert sample.info.priority == pytest.approx(wanted, rel=1e-5)
    seen.add(sample.info.priority)
  assert len(seen) > 10


def test_after_a_reset_no_window_goes_on():
  ring = ring_lib.Ring(500, 1, (LAYOUT.width,), LAYOUT.dtype, seed=0)
  ring.lost = 7
  adder = adders.TransitionAdder(
    None, 'unused', LAYOUT, N, GAMMA, NUM_ENVS, ring=ring
  )
  for step in _play(N - 1):
    adder.add(*step)
  adder.reset()
  for step in _play(20):
    adder.add(*step)
  adder.flush()
  # One episode has ended before the reset.
  wanted = np.concatenate(
    _expected(N - 1, lambda window: window.finished())
    + _expected(20, lambda window: window.finished())
  )
  np.testing.assert_array_equal(ring.save()['rows'], wanted)
  assert adder.lost == 7


@pytest.mark.parametrize('size, burst', [(0, 64), (3, 64), (8, 4)])
def test_items_that_do_not_divide_a_burst_are_refused(serve, size, burst):
  with pytest.raises(ValueError, match=f'item_size={size}'):
    _adder(serve, item_size=size, burst=burst)
  with pytest.raises(ValueError, match='burst=0'):
    adders.PopulationAdder(None, 'table', LAYOUT, N, GAMMA, NUM_ENVS, burst=0)


def test_a_priority_function_gives_each_transition_its_own(serve):
  client, adder = _adder(
    serve, priority=lambda packed: 1 + LAYOUT.unpack(packed).r_t % 7
  )
  for step in _play(50):
    adder.add(*step)
  adder.flush()
  priorities = set()
  for sample in client.sample('table', 100, emit_timesteps=False):
    r_t = LAYOUT.unpack(sample.data[0]).r_t
    assert sample.info.priority == pytest.approx(1 + r_t % 7)
    priorities.add(sample.info.priority)
  assert len(priorities) > 10


def test_transitions_are_held_and_their_priorities_asked_for_in_bursts(
  serve, monkeypatch
):
  calls = []

  def priority(packed):
    calls.append(len(packed))
    return np.ones(len(packed))

  # Chunks of 8 do not divide the burst: the rest waits for the next.
  monkeypatch.setattr(writer, 'CHUNK_LENGTH', 8)
  client, adder = _adder(serve, priority=priority, burst=20)
  made = 0
  for step in _play(60):
    before = made
    made += adder.add(*step)
    if made < 20:
      assert not calls
    # Nothing that a burst and its chunks allow is held back.
    assert made - sum(calls) < 20
    assert len(calls) <= 1 + before // 16
  assert len(calls) > 5 and all(count % 8 == 0 for count in calls)
  adder.flush()
  assert sum(calls) == made == _size(client)
  adder.flush()
  assert _size(client) == made


def test_a_burst_comes_in_without_a_flush(serve):
  client, adder = _adder(serve, burst=4)
  made = sum(adder.add(*step) for step in _play(20))
  deadline = time.monotonic() + 60
  while _size(client) < made // 4 * 4:
    assert time.monotonic() < deadline
    time.sleep(0.01)
  assert _size(client) == made // 4 * 4


def test_priorities_that_are_not_finite_become_the_largest_of_the_burst(serve):
  broken = {2: np.nan, 5: np.inf, 9: np.nan}

  def priority(packed):
    found = 1.0 + np.arange(len(packed))
    found[list(broken)] = list(broken.values())
    return found

  server = serve(tables.queue('queue', 1000, LAYOUT.signature()))
  client = server.localhost_client()
  adder = adders.TransitionAdder(
    client, 'queue', LAYOUT, N, GAMMA, NUM_ENVS, priority, burst=1000
  )
  made = sum(adder.add(*step) for step in _play(10))
  adder.flush()
  wanted = 1.0 + np.arange(made)
  wanted[list(broken)] = made
  samples = client.sample('queue', made, emit_timesteps=False)
  np.testing.assert_array_equal([s.info.priority for s in samples], wanted)


def test_where_no_priority_is_finite_all_are_one_and_it_is_said(serve, caplog):
  client, adder = _adder(
    serve, priority=lambda packed: np.full(len(packed), np.nan), burst=8
  )
  made = sum(adder.add(*step) for step in _play(10))
  adder.flush()
  assert made > 16
  (message,) = caplog.messages
  assert "8 of 8 priorities for table 'table' are not finite" in message
  for sample in client.sample('table', 20):
    assert sample[0].info.priority == 1.0


def test_negative_priorities_are_refused(serve):
  client, adder = _adder(serve, priority=lambda p: -np.ones(len(p)), burst=1)
  with pytest.raises(ValueError, match='negative.*-1.0.*at least 0'):
    for step in _play(5):
      adder.add(*step)
  assert _size(client) == 0


def test_priorities_of_another_number_are_refused(serve):
  _, adder = _adder(serve, priority=lambda packed: np.ones((len(packed), 1)))
  for step in _play(5):
    adder.add(*step)
  with pytest.raises(ValueError, match=r'shape \(\d+, 1\)'):
    adder.flush()


def test_the_version_travels_with_the_transition(serve):
  client, adder = _adder(serve)
  for t, step in enumerate(_play(50)):
    adder.add(*step, version=1000 + t)
  adder.flush()
  versions = []
  for sample in client.sample('table', 100, emit_timesteps=False):
    fields = LAYOUT.unpack(sample.data[0])
    assert fields.written_at == 1234.5
    versions.append(float(fields.version))
  assert len(set(versions)) > 20
  assert 1000 <= min(versions) and max(versions) < 1050


def test_byte_observations_travel(serve):
  layout = packing.TransitionLayout((3,), observation_dtype='uint8')
  client, adder = _adder(serve, layout)
  window = nstep.NStepWindow(NUM_ENVS, N, GAMMA, layout)
  wanted = set()
  for observation, action, step in _play(30):
    step = step._replace(observation=step.observation.astype(np.uint8))
    observation = observation.astype(np.uint8)
    adder.add(observation, action, step)
    window.observe(observation, action, step)
    wanted |= {row.tobytes() for row in window.finished()}
  adder.flush()
  got = {
    sample.data[0].tobytes()
    for sample in client.sample('table', 500, emit_timesteps=False)
  }
  assert got <= wanted and len(got) > len(wanted) // 2


def test_items_come_in_without_a_flush(serve):
  server = serve(tables.queue('queue', 1000, LAYOUT.signature(NUM_ENVS)))
  client = server.localhost_client()
  adder = adders.PopulationAdder(
    client, 'queue', LAYOUT, 1, GAMMA, NUM_ENVS, burst=4
  )
  for step in _play(14):
    adder.add(*step)
  deadline = time.monotonic() + 60
  while client.server_info()['queue'].current_size < 12:
    assert time.monotonic() < deadline
    time.sleep(0.01)
  assert client.server_info()['queue'].current_size == 12
  adder.flush()
  assert client.server_info()['queue'].current_size == 14


def test_a_full_queue_holds_the_writer_and_the_error_names_its_limiter(serve):
  server = serve(tables.queue('small', 5, LAYOUT.signature(NUM_ENVS)))
  client = server.localhost_client()
  adder = adders.PopulationAdder(
    client,
    'small',
    LAYOUT,
    1,
    GAMMA,
    NUM_ENVS,
    burst=1,
    options=writer.WriteOptions(max_in_flight=4),
  )
  steps = _play(100)
  adder.add(*next(steps))
  adder.flush()  # the first one sets the stream up, too
  written = adder._writer
  written._options = dataclasses.replace(written._options, timeout_s=3.0)
  taken = 1
  with pytest.raises(
    writer.WriteBlocked,
    match=r"'small' at localhost:\d+: it holds 5 of 5 items",
  ):
    for step in steps:
      adder.add(*step)
      taken += 1
  assert taken < 5 + 4
  # What was in flight goes in as soon as there is room: nothing is lost.
  wanted = _expected_aligned(taken + 1)
  samples = client.sample('small', taken + 1, emit_timesteps=False)
  np.testing.assert_array_equal([s.data[0] for s in samples], wanted)


def _expected_aligned(num_steps):
  window = nstep.NStepWindow(NUM_ENVS, 1, GAMMA, LAYOUT)
  items = []
  for step in _play(num_steps):
    window.observe(*step)
    items.append(window.aligned())
  return items


def test_a_stop_request_ends_the_wait_for_a_full_queue(serve):
  server = serve(tables.queue('small', 1, LAYOUT.signature(NUM_ENVS)))
  options = writer.WriteOptions(max_in_flight=2, should_stop=lambda: True)
  adder = adders.PopulationAdder(
    server.localhost_client(),
    'small',
    LAYOUT,
    1,
    GAMMA,
    NUM_ENVS,
    burst=1,
    options=options,
  )
  start = time.monotonic()
  for step in _play(4):
    adder.add(*step)
  adder.flush()
  assert time.monotonic() - start < options.timeout_s


def test_a_server_that_went_away_is_named_with_its_address(serve):
  server = serve(tables.queue('queue', 100, LAYOUT.signature(NUM_ENVS)))
  client = reverb.Client(f'localhost:{server.port}')
  adder = adders.PopulationAdder(
    client,
    'queue',
    LAYOUT,
    1,
    GAMMA,
    NUM_ENVS,
  )
  steps = _play(20)
  adder.add(*next(steps))
  adder.flush()
  written = adder._writer
  written._options = dataclasses.replace(written._options, timeout_s=0.5)
  server.stop()
  adder.add(*next(steps))
  with pytest.raises(
    writer.WriteBlocked, match=rf'localhost:{server.port}: it does'
  ):
    adder.flush()


def test_a_table_that_is_not_there_is_named(serve):
  server = serve(tables.queue('queue', 100, LAYOUT.signature(NUM_ENVS)))
  client = server.localhost_client()
  with pytest.raises(ValueError, match="no table 'cue' at .*, only queue"):
    adders.PopulationAdder(client, 'cue', LAYOUT, 1, GAMMA, NUM_ENVS)


def test_items_that_do_not_fit_the_table_are_refused_at_once(serve):
  server = serve(tables.queue('queue', 100, LAYOUT.signature(NUM_ENVS)))
  client = server.localhost_client()
  with pytest.raises(ValueError, match=r'\(4, 12\).*\(5, 12\)'):
    adders.PopulationAdder(client, 'queue', LAYOUT, 1, GAMMA, NUM_ENVS + 1)
  with pytest.raises(ValueError, match=r'\(4, 12\).*\(12,\)'):
    adders.TransitionAdder(client, 'queue', LAYOUT, 1, GAMMA, NUM_ENVS)
