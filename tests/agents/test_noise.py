"""Exploration noise: its size, its memory, and the actions it makes."""

import numpy as np

from murmuration.agents import noise


def test_gaussian_noise_has_its_sigma_and_no_memory():
  rng = np.random.default_rng(0)
  process = noise.Gaussian(0.3)
  draws = np.stack([process.draw(rng, (1, 50, 2)) for _ in range(400)])
  assert draws.dtype == np.float32
  assert abs(draws.std() - 0.3) < 0.005
  correlation = (draws[1:] * draws[:-1]).mean() / 0.3**2
  assert abs(correlation) < 0.03


def test_ornstein_uhlenbeck_noise_is_the_recursion_of_the_paper():
  process = noise.OrnsteinUhlenbeck(sigma=0.2, theta=0.15)
  rng, same = np.random.default_rng(3), np.random.default_rng(3)
  x = np.zeros((2, 3, 1))
  for _ in range(20):
    x = x - 0.15 * x + 0.2 * same.standard_normal((2, 3, 1), np.float32)
    np.testing.assert_allclose(process.draw(rng, (2, 3, 1)), x, rtol=1e-4)


def test_ornstein_uhlenbeck_noise_settles_where_it_says():
  rng = np.random.default_rng(0)
  process = noise.OrnsteinUhlenbeck(sigma=0.2, theta=0.15)
  for _ in range(100):
    draws = process.draw(rng, (1, 20_000, 1))
  expected = 0.2 / np.sqrt(1 - 0.85**2)
  assert abs(draws.std() - expected) < 0.02 * expected


def test_noise_starts_anew_where_an_episode_has_ended_and_only_there():
  rng, same = np.random.default_rng(3), np.random.default_rng(3)
  process = noise.OrnsteinUhlenbeck(sigma=0.2, theta=0.5)
  first = process.draw(rng, (2, 3, 1))
  process.ended(np.array([False, True, False]))
  same.standard_normal((2, 3, 1), np.float32)
  fresh = 0.2 * same.standard_normal((2, 3, 1), np.float32)
  kept = 0.5 * first * np.array([1, 0, 1])[:, None]
  np.testing.assert_allclose(
    process.draw(rng, (2, 3, 1)), kept + fresh, rtol=1e-5
  )


def test_an_episode_may_end_for_one_member_of_a_population():
  process = noise.OrnsteinUhlenbeck(sigma=0.0, theta=0.5)
  rng = np.random.default_rng(0)
  process.draw(rng, (3, 2, 1))
  process._state = np.ones((3, 2, 1), np.float32)
  last = np.array([[False, True], [False, False], [True, True]])
  process.ended(last)
  np.testing.assert_allclose(
    process.draw(rng, (3, 2, 1))[..., 0], np.where(last, 0.0, 0.5)
  )


def test_an_end_does_not_change_the_noise_that_was_drawn_before():
  process = noise.OrnsteinUhlenbeck(0.2, 0.15)
  drawn = process.draw(np.random.default_rng(0), (1, 2, 1))
  kept = drawn.copy()
  process.ended(np.array([True, True]))
  np.testing.assert_array_equal(drawn, kept)


def test_an_episode_may_end_before_any_noise_was_drawn():
  noise.OrnsteinUhlenbeck(0.2, 0.15).ended(np.array([True]))
  noise.Gaussian(0.2).ended(np.array([True]))


def test_what_was_drawn_is_not_changed_by_what_comes_next():
  rng = np.random.default_rng(0)
  process = noise.OrnsteinUhlenbeck(0.2, 0.15)
  first = process.draw(rng, (1, 2, 1))
  kept = first.copy()
  process.draw(rng, (1, 2, 1))
  np.testing.assert_array_equal(first, kept)


def test_actions_are_noisy_and_clipped():
  rng = np.random.default_rng(0)
  means = np.full((1, 4000, 1), 0.8, np.float32)
  noisy = noise.Gaussian(0.5)(means, rng)
  assert noisy.dtype == np.float32
  assert noisy.max() == 1.0  # clipped
  assert noisy.min() < 0.0
  # Below the mean nothing is clipped: half the draws, of the noise's size.
  below = noisy[noisy < 0.8] - 0.8
  assert abs(len(below) / 4000 - 0.5) < 0.05
  assert abs(np.sqrt(np.mean(below**2)) - 0.5) < 0.05
  np.testing.assert_array_equal(means, np.float32(0.8))
