"""An explorer node's line to a real star server, over real RPC."""

import dataclasses
import functools
import math
import threading
import time
import types

import numpy as np
import pytest

from murmuration.agents import dqn
from murmuration.agents import parameters
from murmuration.agents.swarm import explorers
from murmuration.environment_loops import environments
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import rpc
from murmuration.launch.services import star_exchange
from murmuration.run_records import run_directory
from tests.launch.services import star_cases

LAYOUT = star_cases.LAYOUT
OTHER = parameters.Layout([('q/w', (2, 4)), ('q/b', (4,))])
C = 0.05


@pytest.fixture
def swarm(make_swarm):
  return make_swarm(c_max=C)


@pytest.fixture
def server(swarm):
  return swarm.star


@pytest.fixture
def address(tmp_path):
  return f'unix:{tmp_path}/star'


@pytest.fixture
def make_link(address):
  links = []

  def make(layout=LAYOUT, **kwargs):
    client = rpc.Client(address, timeout_s=1.0)
    links.append(star_exchange.StarClient(client, layout, **kwargs))
    return links[-1]

  yield make
  for link in links:
    link.close()


def _theta(value):
  return np.full(LAYOUT.size, value, np.float32)


def _poll_until(link, condition, timeout_s=60.0):
  """Polls as an explorer does, which never waits for an answer."""
  deadline = time.monotonic() + timeout_s
  while not condition(link.star):
    assert time.monotonic() < deadline, link.star
    link.poll()
    time.sleep(0.02)
  return link.star


def test_before_the_first_star_there_is_nothing_to_pull_to(
  server, address, make_link
):
  with rpc.serve(server, address):
    star = make_link().start()
    assert (star.version, star.theta, star.c) == (0, None, 0.0)
    assert star.reachable


def test_a_poll_brings_the_newest_star_and_its_weight(
  swarm, server, address, make_link
):
  with rpc.serve(server, address):
    link = make_link()
    link.start()
    swarm.offer(1.0, claim=1.0)
    swarm.play(5.0, 5.0)
    star = _poll_until(link, lambda star: star.version == 1)
    np.testing.assert_array_equal(star.theta, _theta(1.0))
    assert (star.c, star.r_star) == (C, 5.0)
    first = star.theta
    # Only c and R_star travel while the version stays.
    swarm.play(8.0)
    star = _poll_until(link, lambda star: star.r_star == 6.0)
    assert star.theta is first
    swarm.offer(2.0, claim=2.0)
    swarm.play(6.0, 9.0, 9.0)
    star = _poll_until(link, lambda star: star.version == 2)
    np.testing.assert_array_equal(star.theta, _theta(2.0))


def test_a_server_that_came_back_with_an_older_star_gives_it_whole(
  swarm, server, address, make_link
):
  with rpc.serve(server, address):
    link = make_link()
    swarm.offer(1.0, claim=1.0)
    swarm.play(5.0, 5.0)
    link.start()
    # Of a version that the server had not saved when it died.
    lost = dataclasses.replace(link.star, version=2, theta=_theta(2.0))
    link.star = lost
    star = _poll_until(link, lambda star: star.version == 1)
    np.testing.assert_array_equal(star.theta, _theta(1.0))


def test_a_restarted_node_starts_with_the_star(
  swarm, server, address, make_link
):
  swarm.offer(3.0, claim=1.0)
  swarm.play(5.0, 5.0)
  with rpc.serve(server, address):
    star = make_link().start()
    assert star.version == 1
    np.testing.assert_array_equal(star.theta, _theta(3.0))


def test_of_several_offers_only_the_best_is_sent(
  swarm, server, address, make_link
):
  swarm.offer(0.0, claim=0.0)
  swarm.play(4.0, 4.0)  # the star is in a confirmation: a candidate waits
  with rpc.serve(server, address):
    link = make_link()
    theta = _theta(2.0)
    link.offer(_theta(1.0), 1.0, 0, 0)
    link.offer(theta, 3.0, 5, 70)
    link.offer(_theta(9.0), 2.0, 0, 0)
    link.offer(_theta(8.0), 3.0, 0, 0)  # the earliest of equals
    theta[:] = 7.0  # The explorer learns on; what is offered stays.
    link.start()
    star = _poll_until(link, lambda star: star.bar == 3.0)
    assert star.version == 1
    assert server.metrics()['offers'] == 2
    swarm.play(4.0, 5.0, 5.0)
    assert swarm.get()[:2] == (2, 2.0)


def test_alone_while_the_server_is_gone_and_pulled_again_when_it_is_back(
  swarm, server, address, make_link, caplog
):
  with rpc.serve(server, address):
    swarm.offer(1.0, claim=1.0)
    swarm.play(5.0, 5.0)
    link = make_link()
    assert link.start().c == C
  star = _poll_until(link, lambda star: not star.reachable)
  assert star.c == 0.0 and star.version == 1
  np.testing.assert_array_equal(star.theta, _theta(1.0))
  # What is asked of the link while nobody answers costs the explorer nothing.
  begin = time.monotonic()
  for i in range(100):
    link.poll()
    link.offer(_theta(2.0), float(i), 0, 0)
  assert time.monotonic() - begin < 5.0
  with rpc.serve(server, address):
    star = _poll_until(link, lambda star: star.reachable)
    assert (star.c, star.version) == (C, 1)
  for words in ('Learning alone, no pull: ', 'The star server is back ('):
    assert caplog.text.count(words) == 1


def test_an_offer_that_found_no_server_is_sent_when_it_is_back(
  swarm, server, address, make_link
):
  swarm.offer(0.0, claim=0.0)
  swarm.play(4.0, 4.0)
  with rpc.serve(server, address):
    link = make_link()
    link.start()
  link.offer(_theta(2.0), 3.0, 0, 0)
  _poll_until(link, lambda star: not star.reachable)  # the offer was tried
  link.offer(_theta(9.0), 1.0, 0, 0)  # not better than the one that waits
  with rpc.serve(server, address):
    _poll_until(link, lambda star: star.bar == 3.0)
  assert server.metrics()['offers'] == 2


@pytest.mark.parametrize(('meanwhile', 'kept'), [(9.0, 9.0), (0.5, 1.0)])
def test_an_offer_that_was_not_answered_replaces_no_better_one(meanwhile, kept):
  def lose(*unused):
    link.offer(_theta(meanwhile), meanwhile, 0, 0)
    raise rpc.Unavailable('nowhere', 'offer', True, 'no answer')

  link = star_exchange.StarClient(types.SimpleNamespace(offer=lose), LAYOUT)
  link.offer(_theta(1.0), 1.0, 0, 0)
  with pytest.raises(rpc.Unavailable):
    link._send_offer()
  theta, claim, _, _ = link._offer
  assert (theta[0], claim) == (kept, kept)


def test_a_refused_offer_does_not_end_the_link(
  swarm, server, address, make_link, caplog
):
  swarm.offer(0.0, claim=0.0)
  swarm.play(4.0, 4.0)
  with rpc.serve(server, address):
    link = make_link()
    link.start()
    link.offer(_theta(math.nan), 1.0, 0, 0)
    _poll_until(link, lambda star: 'offered non-finite' in caplog.text)
    link.offer(_theta(1.0), 2.0, 0, 0)
    _poll_until(link, lambda star: star.bar == 2.0 and star.reachable)


def test_a_wait_for_the_server_at_the_start_ends_with_the_program(address):
  _, exchange, _, theta_star = _explorers()
  node = exchange(server=rpc.Client(address, timeout_s=0.1))
  node.should_stop = lambda: True
  with pytest.raises(rpc.Unavailable) as error:
    node.initial(theta_star[None], False)
  assert 'gave up after' not in str(error.value)  # a minute of tries


def test_close_ends_the_thread_while_the_server_is_gone(
  server, address, make_link
):
  with rpc.serve(server, address):
    link = make_link()
    link.start()
  link.poll()

  def alive():
    return any(t.name == 'star-client' for t in threading.enumerate())

  assert alive()
  link.close()
  deadline = time.monotonic() + 60
  while alive():
    assert time.monotonic() < deadline
    time.sleep(0.02)


# A whole node: who begins where.

MEMBERS, BEFORE = 3, 10


class _Published:
  """A star server with one theta_star."""

  serves = ('get_star', 'offer')

  def __init__(self, layout, theta):
    self._theta = parameters.encode(layout, 1, theta)

  def get_star(self, known):
    theta = None if known == 1 else self._theta
    return {'version': 1, 'theta': theta, 'c': C, 'r_star': 5.0, 'bar': 9.0}

  def offer(self, *unused):
    return False


class _Empty(_Published):
  """A star server before the first theta_star."""

  def get_star(self, known):
    return {**super().get_star(1), 'version': 0, 'c': 0.0}


def _explorers(**swarm):
  """An experiment of explorers that act and never learn, and its star."""
  spec = environments.Spec('counting', (3,), 2)
  config = dqn.Config(hidden_sizes=(4,), min_replay_size=500)
  experiment = experiment_lib.Experiment(
    functools.partial(dqn.DQN, config, spec),
    'counting',
    num_agents=MEMBERS,
    max_replay_size=1000,
    min_replay_size=500,
    run=experiment_lib.RunConfig(steps_per_agent=2 * BEFORE),
  )
  layout = experiment.make_agent().layout
  config = explorers.Config(num_explorers=MEMBERS, b=1, k=1.0, **swarm)
  theta_star = np.full(layout.size, 0.25, np.float32)
  server = _Published(layout, theta_star)
  exchange = functools.partial(
    star_exchange.StarExchange, config, layout, MEMBERS, 1
  )
  return experiment, exchange, server, theta_star


@pytest.mark.parametrize(
  ('start', 'distinct'), [('own', MEMBERS), ('shared', 1)]
)
def test_a_node_that_starts_for_the_first_time_keeps_its_own_parameters(
  recorder, run_worker, make_counter, address, start, distinct
):
  experiment, exchange, server, theta_star = _explorers(start=start)
  with rpc.serve(server, address):
    worker = run_worker(
      experiment,
      make_counter(),
      node='explorer/0',
      exchange=exchange,
      peers={'server': rpc.Client(address, timeout_s=1.0)},
    )
  assert worker.theta.shape == (MEMBERS, theta_star.size)
  assert len(np.unique(worker.theta, axis=0)) == distinct
  assert not (worker.theta == theta_star).all(axis=1).any()


def test_a_node_that_is_started_again_takes_theta_star_for_all(
  recorder, run_worker, make_counter, address
):
  experiment, exchange, server, theta_star = _explorers()
  counter = make_counter()
  # What it did before it died.
  counter.report('explorer/0', {'actor_steps': MEMBERS * BEFORE})
  with rpc.serve(server, address):
    worker = run_worker(
      experiment,
      counter,
      node='explorer/0',
      exchange=exchange,
      peers={'server': rpc.Client(address, timeout_s=1.0)},
    )
  assert worker.steps == 2 * BEFORE
  np.testing.assert_array_equal(worker.theta, [theta_star] * MEMBERS)


def test_an_error_in_the_thread_of_the_client_ends_the_node(server):
  asked = []

  def get_star(version):
    asked.append(version)
    if len(asked) > 1:
      raise ValueError('This is a mistake in the code.')
    return server.get_star(version)

  made = star_exchange.StarExchange(
    explorers.Config(),
    LAYOUT,
    MEMBERS,
    1,
    server=types.SimpleNamespace(get_star=get_star),
  )
  made.initial(np.zeros((MEMBERS, 2), np.float32), False)
  made.begin(types.SimpleNamespace(steps=0))
  until = time.monotonic() + 60
  with pytest.raises(ValueError, match='mistake'):
    while time.monotonic() < until:
      made.sync()
      time.sleep(0.01)
  made.close()


def _offering(updates, star=None, again=False, **swarm):
  """An exchange in a worker made up, and the list of what it offers."""
  _, exchange, _, _ = _explorers(**swarm)
  star, offered = star or star_exchange.Star(), []
  made = exchange(server=None)
  made._client = types.SimpleNamespace(
    star=star,
    fault=None,
    start=lambda should_stop: star,
    offer=lambda theta, *rest: offered.append(rest),
  )
  theta = made.initial(np.zeros((MEMBERS, 2), np.float32), again)
  worker = types.SimpleNamespace(
    theta=theta,
    members=[types.SimpleNamespace(index=i) for i in range(MEMBERS)],
    learner=types.SimpleNamespace(updates=updates),
  )
  made.begin(worker)
  return made, worker, offered


def test_an_explorer_offers_nothing_before_it_has_learned():
  made, worker, offered = _offering(2, offer_after_updates=3, claim_episodes=2)
  done = types.SimpleNamespace(index=1, episode_return=500.0)
  for _ in range(3):
    made.episode_ended(done)
  assert not offered
  worker.learner.updates = 3
  made.episode_ended(done)
  assert offered == [(500.0, 1, 3)]
  # Of other parameters these returns say nothing.
  made.reset_member(1)
  made.episode_ended(types.SimpleNamespace(index=1, episode_return=2.0))
  assert made._returns.means[1] == 2.0 and len(offered) == 1


def test_a_claim_that_the_server_would_not_keep_is_not_sent():
  star = star_exchange.Star(bar=5.0)
  made, _, offered = _offering(1, star, claim_episodes=1)
  for episode_return in (5.0, 6.0):
    done = types.SimpleNamespace(index=1, episode_return=episode_return)
    made.episode_ended(done)
  assert offered == [(6.0, 1, 1)]


STAR = star_exchange.Star(version=1, theta=np.ones(2, np.float32))


@pytest.mark.parametrize(('star', 'keeps'), [(None, True), (STAR, False)])
def test_a_node_started_again_keeps_its_learner_until_there_is_a_star(
  star, keeps
):
  made, *_ = _offering(50, star, again=True)
  assert made.keeps_learner == keeps


def test_a_node_that_dies_before_there_is_a_star_goes_on_from_its_checkpoint(
  recorder, run_worker, make_counter, address, tmp_path
):
  path = run_directory.create(tmp_path / 'run', {}, {}).path
  experiment, exchange, _, theta_star = _explorers()
  server = _Empty(experiment.make_agent().layout, theta_star)
  experiment = dataclasses.replace(experiment, run_dir=str(path))
  counter = make_counter()

  def start():
    return run_worker(
      experiment,
      counter,
      node='explorer/0',
      exchange=exchange,
      peers={'server': rpc.Client(address, timeout_s=1.0)},
    ).theta

  with rpc.serve(server, address):
    np.testing.assert_array_equal(start(), start())
