"""What tells the explorers of a swarm apart: rates, pulls and claims."""

import numpy as np

from murmuration.agents import base
from murmuration.agents.swarm import explorers


def _rates(count, spread, rate=1e-3):
  infos = [base.ActorInfo(i, count, 0) for i in range(count)]
  return [explorers.learning_rate(rate, info, spread) for info in infos]


def test_learning_rates_spread_over_two_decades():
  expected = 1e-3 * np.array([0.1, 10 ** (-1 / 3), 10 ** (1 / 3), 10.0])
  np.testing.assert_allclose(_rates(4, 'decades'), expected)
  # Clipped at both ends.
  assert min(_rates(4, 'decades', 2e-5)) == 1e-5
  assert max(_rates(4, 'decades', 5e-3)) == 1e-2


def test_learning_rates_of_the_paper_do_not_depend_on_the_base():
  np.testing.assert_allclose(_rates(4, 'paper'), [1e-5, 1e-4, 1e-3, 1e-2])
  assert _rates(4, 'paper') == _rates(4, 'paper', 0.5)


def test_a_single_explorer_learns_at_the_base_rate():
  assert [_rates(1, s)[0] for s in ('decades', 'paper', 'none')] == [1e-3] * 3
  assert _rates(3, 'none') == [1e-3] * 3


def test_only_a_better_star_pulls():
  own = np.array([np.nan, 4.9, 5.0, 9.0])
  np.testing.assert_allclose(
    explorers.pull_weights(0.1, 5.0, own), [0.1, 0.1, 0.0, 0.0]
  )


def test_a_claim_is_the_mean_of_the_last_episodes_of_its_explorer():
  claims = explorers.Claims(num_members=2, claim_episodes=3)
  assert np.isnan(claims.means).all()
  got = [claims.finished(0, g) for g in (1.0, 2.0, 6.0, 10.0)]
  assert got == [None, None, 3.0, 6.0]
  assert [claims.finished(1, g) for g in (5.0, 7.0)] == [None, None]
  np.testing.assert_allclose(claims.means, [6.0, 6.0])


def test_who_has_other_parameters_claims_anew():
  returns = explorers.Claims(num_members=2, claim_episodes=2)
  for member in (0, 1):
    assert returns.finished(member, 100.0) is None
  returns.forget(0)
  # Until its next episode nothing keeps theta_star from pulling it.
  np.testing.assert_array_equal(returns.means, [np.nan, 100.0])
  assert returns.finished(0, 1.0) is None
  assert returns.finished(1, 50.0) == 75.0
