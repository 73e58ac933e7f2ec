"""n-step windows against the vectors, a slow transcription, and a counter."""

import json
import pathlib
import types
from typing import Any, NamedTuple

import numpy as np
import pytest

from murmuration.replay import nstep
from murmuration.replay import packing
from tests import counting

VECTORS = pathlib.Path(__file__).parents[1] / 'vectors'


def _cases(name):
  cases = json.loads((VECTORS / name).read_text())['cases']
  return [pytest.param(c['inputs'], c['expected'], id=c['name']) for c in cases]


class Step(NamedTuple):
  """The fields of a vector environment's step that a window reads."""

  observation: Any
  reward: Any
  discount: Any
  last: Any


class Start(NamedTuple):
  """One transition by the addresses of its ends."""

  env: int
  first: int
  last: int
  returns: float
  discount: float


def slow_windows(rewards, discounts, ends, gamma, n):
  """Each start's full window, cut at the episode end: the sums of the spec.

  Args are [T]; a window that neither is full nor has met its end is left out.
  Returns {first: (last, R, D)}.
  """
  windows = {}
  for t in range(len(rewards)):
    total, discount = 0.0, 1.0
    for k in range(n):
      if t + k >= len(rewards):
        break
      total += gamma**k * discount * rewards[t + k]
      discount *= discounts[t + k]
      if ends[t + k] or k == n - 1:
        windows[t] = (t + k + 1, total, gamma**k * discount)
        break
  return windows


class Stream:
  """Random steps of K environments; an observation is the step's number.

  The observation after step t is t + 1 and the next episode starts at t + 1
  too, marked by its second number, so an arrival at the wrong side of a reset
  shows.
  """

  def __init__(self, num_envs, num_steps, seed=0):
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    self.rewards = rng.normal(size=shape).astype(np.float32)
    ended = rng.uniform(size=shape)
    self.ends = ended < 0.3
    # Half of the ends are truncations.
    self.discounts = np.where(ended < 0.15, 0.0, 1.0).astype(np.float32)
    self.actions = rng.integers(0, 5, size=shape)

  def steps(self):
    num_steps, num_envs = self.rewards.shape
    buffer = np.empty((num_envs, 2), np.float32)
    fresh = np.ones(num_envs, bool)
    for t in range(num_steps):
      observation = np.stack([np.full(num_envs, t), fresh], -1)
      # One buffer for all arrivals: windows must not keep a reference to it.
      buffer[:] = t + 1, 0
      step = Step(buffer, self.rewards[t], self.discounts[t], self.ends[t])
      yield observation.astype(np.float32), self.actions[t], step
      buffer[:] = np.nan
      fresh = self.ends[t]

  def windows(self, env, gamma, n):
    return slow_windows(
      self.rewards[:, env],
      self.discounts[:, env],
      self.ends[:, env],
      gamma,
      n,
    )


LAYOUT = packing.TransitionLayout((2,))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
  """Windows are compared: those written at one moment are equal."""
  monkeypatch.setattr(packing, 'written_now', lambda: 1234.5)


def _starts(stream, packed, env=0):
  fields = LAYOUT.unpack(packed)
  for o_tm1, a_tm1, r_t, d_t, o_t, weight, _, written_at in zip(
    *fields, strict=True
  ):
    first, last = int(o_tm1[0]), int(o_t[0])
    assert weight == 1
    assert written_at == 1234.5
    assert o_t[1] == 0, 'arrived at a reset observation'
    assert a_tm1 == stream.actions[first, env]
    yield Start(env, first, last, float(r_t), float(d_t))


@pytest.mark.parametrize(
  'inputs, expected',
  [
    case
    for case in _cases('nstep_transitions.json')
    # Acme's short windows at the start of an episode are not written here.
    if not case.values[0]['start_partials']
  ],
)
def test_finished_windows_are_those_of_the_vectors(inputs, expected):
  layout = packing.TransitionLayout((1,))
  window = nstep.NStepWindow(1, inputs['n'], inputs['gamma'], layout)
  length = len(inputs['rewards'])
  # Twice, so that nothing of the first episode is left in the second.
  for _ in range(2):
    written = []
    for t in range(length):
      step = Step(
        np.array([[t + 1]]),
        np.array([inputs['rewards'][t]]),
        np.array([inputs['discounts'][t]]),
        np.array([t == length - 1]),
      )
      window.observe(np.array([[t]]), np.array([t]), step)
      written.append(window.finished())
    fields = layout.unpack(np.concatenate(written))
    wanted = expected['transitions']
    tolerance = {'rtol': 1e-5, 'atol': 1e-6}
    np.testing.assert_array_equal(fields.a_tm1, [w['first'] for w in wanted])
    np.testing.assert_array_equal(
      fields.o_tm1[:, 0], [w['first'] for w in wanted]
    )
    np.testing.assert_array_equal(fields.o_t[:, 0], [w['last'] for w in wanted])
    np.testing.assert_allclose(
      fields.r_t, [w['R'] for w in wanted], **tolerance
    )
    np.testing.assert_allclose(
      fields.d_t, [w['D'] for w in wanted], **tolerance
    )


@pytest.mark.parametrize('form', ['aligned', 'finished'])
@pytest.mark.parametrize('inputs, expected', _cases('nstep_targets.json'))
def test_transitions_give_the_targets_of_the_vectors(inputs, expected, form):
  layout = packing.TransitionLayout((1,))
  n, gamma = inputs['n'], inputs['gamma']
  length = len(inputs['rewards'])
  window = nstep.NStepWindow(1, n, gamma, layout)
  targets = {}
  for t in range(length):
    terminated, truncated = inputs['terminated'][t], inputs['truncated'][t]
    step = Step(
      np.array([[inputs['next_values'][t]]]),
      np.array([inputs['rewards'][t]]),
      np.array([0.0 if terminated else 1.0]),
      np.array([terminated or truncated]),
    )
    window.observe(np.array([[t]]), np.array([0]), step)
    fields = layout.unpack(getattr(window, form)())
    for o_tm1, r_t, d_t, o_t, weight in zip(
      fields.o_tm1,
      fields.r_t,
      fields.d_t,
      fields.o_t,
      fields.weight,
      strict=True,
    ):
      if weight:
        targets[int(o_tm1[0])] = r_t + gamma * d_t * o_t[0]
  # The vectors also cut windows at the end of the stream; a writer waits there.
  ends = np.logical_or(inputs['terminated'], inputs['truncated'])
  complete = slow_windows(np.zeros(length), np.ones(length), ends, gamma, n)
  if form == 'aligned':
    complete = [t for t in complete if t + n <= length]
  assert sorted(targets) == sorted(complete)
  for t, target in targets.items():
    np.testing.assert_allclose(
      target, expected['targets'][t], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize('n', [1, 2, 3, 7])
@pytest.mark.parametrize('num_envs', [1, 5])
def test_aligned_rows_are_the_windows_that_began_n_steps_ago(num_envs, n):
  stream = Stream(num_envs, 200)
  window = nstep.NStepWindow(num_envs, n, 0.9, LAYOUT)
  rows = [[] for _ in range(num_envs)]
  for t, (observation, action, step) in enumerate(stream.steps()):
    window.observe(observation, action, step)
    packed = window.aligned()
    assert window.ready == (t >= n - 1)
    if not window.ready:
      assert not LAYOUT.unpack(packed).weight.any()
      continue
    for env in range(num_envs):
      (start,) = _starts(stream, packed[env : env + 1], env)
      assert start.first == t - n + 1
      rows[env].append(start)
  for env in range(num_envs):
    wanted = stream.windows(env, 0.9, n)
    assert [s.first for s in rows[env]] == list(range(200 - n + 1))
    for start in rows[env]:
      np.testing.assert_allclose(
        (start.last, start.returns, start.discount),
        wanted[start.first],
        rtol=1e-5,
        atol=1e-6,
      )


@pytest.mark.parametrize('n', [1, 3, 7])
def test_finished_windows_are_each_start_once_in_order(n):
  num_envs = 4
  stream = Stream(num_envs, 200, seed=1)
  windows = [nstep.NStepWindow(1, n, 0.9, LAYOUT) for _ in range(num_envs)]
  together = nstep.NStepWindow(num_envs, n, 0.9, LAYOUT)
  rows = [[] for _ in range(num_envs)]
  for observation, action, step in stream.steps():
    together.observe(observation, action, step)
    alone = []
    for env, window in enumerate(windows):
      one = slice(env, env + 1)
      window.observe(
        observation[one], action[one], Step(*(field[one] for field in step))
      )
      alone.append(window.finished())
      rows[env].extend(_starts(stream, alone[-1], env))
    # K environments together write what K windows of one would.
    np.testing.assert_array_equal(together.finished(), np.concatenate(alone))
  for env in range(num_envs):
    wanted = stream.windows(env, 0.9, n)
    assert [s.first for s in rows[env]] == sorted(wanted)
    for start in rows[env]:
      np.testing.assert_allclose(
        (start.last, start.returns, start.discount),
        wanted[start.first],
        rtol=1e-5,
        atol=1e-6,
      )


@pytest.mark.parametrize('form', ['aligned', 'finished'])
def test_counting_episodes_are_neither_lost_nor_joined(form):
  num_envs, n, gamma = 6, 3, 0.5
  plan = counting.Plan()
  env = counting.make_vector(num_envs)
  layout = packing.TransitionLayout((3,))
  window = nstep.NStepWindow(num_envs, n, gamma, layout)
  observation = env.reset()
  seen = set()
  for _ in range(100):
    action = np.zeros(num_envs, np.int32)
    step = env.step(action)
    window.observe(observation, action, step)
    observation = step.next_observation
    fields = layout.unpack(getattr(window, form)())
    for start, end, r_t, d_t, weight in zip(
      fields.o_tm1,
      fields.o_t,
      fields.r_t,
      fields.d_t,
      fields.weight,
      strict=True,
    ):
      if not weight:
        continue
      episode, t, index = (int(x) for x in start)
      length = plan.length(index, episode)
      last = min(t + n, length)
      np.testing.assert_array_equal(end, [episode, last, index])
      wanted = sum(
        gamma**k * plan.reward(index, episode, t + k + 1)
        for k in range(last - t)
      )
      np.testing.assert_allclose(r_t, wanted, rtol=1e-6)
      terminated = last == length and plan.terminates(index, episode)
      assert d_t == (0 if terminated else gamma ** (last - t - 1))
      assert (index, episode, t) not in seen
      seen.add((index, episode, t))
  for index in range(num_envs):
    episode, t, count = 0, 0, 0
    while (index, episode, t) in seen:
      count += 1
      t += 1
      if t == plan.length(index, episode):
        episode, t = episode + 1, 0
    # All but those still open in the last n - 1 steps, and no other.
    assert count == sum(key[0] == index for key in seen)
    assert 100 - n < count <= 100


@pytest.mark.parametrize('form', ['aligned', 'finished'])
def test_the_version_is_that_of_the_first_step(form):
  num_envs = 5
  stream = Stream(num_envs, 100, seed=2)
  for version in (lambda t: 10 * t, lambda t: 10 * t + np.arange(num_envs)):
    window = nstep.NStepWindow(num_envs, 3, 0.9, LAYOUT)
    checked = 0
    for t, (observation, _, step) in enumerate(stream.steps()):
      # The action is the environment's number, so that it can be told.
      env = np.arange(num_envs)
      window.observe(observation, env, step, version(t))
      packed = getattr(window, form)()
      fields = LAYOUT.unpack(packed[LAYOUT.unpack(packed).weight > 0])
      first = fields.o_tm1[:, 0].astype(int)
      wanted = [
        np.broadcast_to(version(t), num_envs)[env]
        for t, env in zip(first, fields.a_tm1, strict=True)
      ]
      np.testing.assert_array_equal(fields.version, wanted)
      checked += len(wanted)
    assert checked > 90 * num_envs


def test_byte_observations_give_the_windows_of_float_ones():
  num_envs = 4
  stream = Stream(num_envs, 100, seed=3)
  layout = packing.TransitionLayout((2,), observation_dtype='uint8')
  floats = nstep.NStepWindow(num_envs, 3, 0.9, LAYOUT)
  window = nstep.NStepWindow(num_envs, 3, 0.9, layout)
  for t, (observation, action, step) in enumerate(stream.steps()):
    floats.observe(observation, action, step, t)
    window.observe(
      observation.astype(np.uint8),
      action,
      step._replace(observation=step.observation.astype(np.uint8)),
      t,
    )
    for form in ('aligned', 'finished'):
      packed = getattr(window, form)()
      assert packed.dtype == np.uint8
      got = layout.unpack(packed)
      wanted = LAYOUT.unpack(getattr(floats, form)())
      if form == 'aligned' and not window.ready:
        np.testing.assert_array_equal(got.weight, 0)
        continue
      for name, a, b in zip(got._fields, got, wanted, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_float_observations_do_not_go_into_a_byte_layout():
  layout = packing.TransitionLayout((2,), observation_dtype='uint8')
  window = nstep.NStepWindow(3, 2, 0.9, layout)
  observation, action, step = next(Stream(3, 1).steps())
  arrived = step._replace(observation=step.observation.astype(np.uint8))
  with pytest.raises(ValueError, match='^observation is float32'):
    window.observe(observation, action, arrived)
  with pytest.raises(ValueError, match='^step.observation is float32'):
    window.observe(observation.astype(np.uint8), action, step)


def test_reset_drops_open_windows_and_starts_anew():
  stream = Stream(3, 20)
  window = nstep.NStepWindow(3, 4, 0.9, LAYOUT)
  fresh = nstep.NStepWindow(3, 4, 0.9, LAYOUT)
  steps = [(o, a, Step(*map(np.copy, s))) for o, a, s in stream.steps()]
  for step in steps[:10]:
    window.observe(*step)
  window.reset()
  for step in steps[10:]:
    window.observe(*step)
    fresh.observe(*step)
    assert window.ready == fresh.ready
    np.testing.assert_array_equal(window.finished(), fresh.finished())
    if window.ready:
      np.testing.assert_array_equal(window.aligned(), fresh.aligned())
    else:
      assert not LAYOUT.unpack(window.aligned()).weight.any()


def test_what_does_not_fit_is_refused_with_both_shapes():
  window = nstep.NStepWindow(3, 2, 0.9, LAYOUT)
  (observation, action, step), *_ = Stream(3, 1).steps()
  with pytest.raises(ValueError, match=r'action has shape \(2,\).*\(3,\)'):
    window.observe(observation, action[:2], step)
  with pytest.raises(ValueError, match=r'observation has shape \(3, 1\)'):
    window.observe(observation[:, :1], action, step)
  with pytest.raises(ValueError, match=r'step.reward has shape'):
    window.observe(observation, action, step._replace(reward=0.0))


@pytest.mark.parametrize('action', [1.01, -2.0, np.nan])
def test_a_continuous_action_that_was_not_done_is_refused(action):
  layout = packing.TransitionLayout((2,), (2,), discrete=False)
  window = nstep.NStepWindow(1, 2, 0.9, layout)
  actions = np.array([[1.0 + 5e-5, -1.0]], np.float32)  # as rounding makes them
  (observation, _, step), *_ = Stream(1, 1).steps()
  window.observe(observation, actions, step)
  actions[0, 1] = action
  with pytest.raises(ValueError, match=r'needed are floats in \[-1, 1\]'):
    window.observe(observation, actions, step)


@pytest.mark.parametrize(
  'num_envs, n, gamma, said',
  [
    (0, 1, 0.9, 'num_envs=0 and n=1'),
    (1, 0, 0.9, 'num_envs=1 and n=0 must be'),
    (1, 1, 1.1, 'gamma=1.1 must lie'),
    (1, 1, np.nan, 'gamma=nan must lie'),
  ],
)
def test_numbers_out_of_range_are_refused(num_envs, n, gamma, said):
  with pytest.raises(ValueError, match=said):
    nstep.NStepWindow(num_envs, n, gamma, LAYOUT)


@pytest.mark.parametrize('n', [1, 3])
def test_an_episode_that_broke_leaves_no_open_window(n):
  # Environment 0 breaks at step 4; environment 1 goes on.
  window = nstep.NStepWindow(2, n, 0.9, packing.TransitionLayout((1,)))
  finished, aligned = [], []
  for t in range(8):
    broke = np.array([t == 4, False])
    step = types.SimpleNamespace(
      observation=np.full((2, 1), t + 1.0),
      reward=np.ones(2),
      discount=np.ones(2),
      last=broke,
      valid=~broke if broke.any() else None,
    )
    window.observe(np.full((2, 1), float(t)), np.zeros(2), step)
    finished.append(window.finished())
    if window.ready:
      aligned.append(window.aligned())
  starts = window.layout.unpack(np.concatenate(finished)).o_tm1[:, 0]
  full = range(8 - n + 1)
  # Starts whose n steps are all before the fault, and those after it.
  sound = [t for t in full if t + n <= 4 or t > 4]
  assert sorted(starts) == sorted([*full, *sound])
  rows = window.layout.unpack(np.stack(aligned))
  weights = rows.weight[:, 0]
  kept = rows.o_tm1[weights > 0, 0, 0]
  assert sorted(kept) == sorted(sound)
  assert (rows.weight[:, 1] == 1).all()
