"""The supervisor's state machines, and the config of the swarm."""

import dataclasses
import json
import math

import numpy as np
import pytest

from agents.swarm import explorers
from agents.swarm import supervisor_rules

INF = math.inf


def _number(value):
  """A number of the vectors: null and strings stand for what is not finite."""
  return -INF if value is None else float(value)


def _machine(inputs):
  names = ('b', 'k', 'c_max', 'window', 'idle_episodes')
  given = {name: inputs[name] for name in names if name in inputs}
  return supervisor_rules.make_supervision(
    explorers.Config(supervisor=inputs['mode'], **given)
  )


def _through_json(machine, inputs):
  """A new machine with the checkpointed state of this one."""
  state = json.loads(json.dumps(dataclasses.asdict(machine)))
  fresh = _machine(inputs)
  supervisor_rules.restore(fresh, state)
  return fresh


def _play(inputs, through_json=False):
  """(ticket, verdict, machine) after each episode of a vector's events."""
  machine = _machine(inputs)
  for kind, *event in inputs['events']:
    if through_json:
      machine = _through_json(machine, inputs)
    if kind == 'candidate':
      machine.offer(event[0], event[1] if len(event) > 1 else 0.0)
      continue
    ticket, verdict = (
      machine.next_episode(),
      supervisor_rules.Verdict(None, None),
    )
    if through_json and ticket is not None:
      # The process ends in mid-episode: the same one is asked for again.
      machine = _through_json(machine, inputs)
      assert machine.next_episode() == ticket
    if ticket is not None:
      verdict = machine.finish(ticket, event[0])
    yield ticket, verdict, machine


@pytest.mark.vectors('pso_supervisor', mode='default')
@pytest.mark.parametrize('through_json', [False, True])
def test_the_default_machine_is_that_of_the_vectors(vector, through_json):
  played = _play(vector.inputs, through_json)
  rows = vector.expected['after_each_episode']
  for (ticket, verdict, machine), row in zip(played, rows, strict=True):
    assert (ticket and ticket.candidate) == row['tested']
    assert machine.star == row['star']
    assert machine.x == row['x']
    assert machine.c == pytest.approx(row['c'], rel=1e-10)
    assert machine.claim_bar == _number(row['claim_bar'])
    assert machine.r_star == pytest.approx(_number(row['r_global']), rel=1e-10)
    assert verdict.published == row['published']


@pytest.mark.vectors('pso_supervisor', mode='literal')
@pytest.mark.parametrize('through_json', [False, True])
def test_the_literal_machine_is_that_of_the_vectors(vector, through_json):
  played = _play(vector.inputs, through_json)
  rows = vector.expected['after_each_episode']
  for (_, verdict, machine), row in zip(played, rows, strict=True):
    assert machine.loaded == row['loaded']
    assert machine.x == row['x']
    assert machine.c == pytest.approx(row['c'], rel=1e-10)
    assert machine.r_star == _number(row['r_global'])
    assert verdict.published == row['published']
    if verdict.published is not None:
      assert machine.star == verdict.published
      assert machine.published_c == machine.c


@pytest.mark.vectors('pso_supervisor', mode='weight')
def test_the_weight_is_equation_4(vector):
  inputs = vector.inputs
  got = supervisor_rules.weight(inputs['x'], inputs['b'], inputs['k'])
  assert got == pytest.approx(vector.expected['c'], rel=1e-10)


def _default(b=2, k=200.0, c_max=None, window=5, idle_episodes=4):
  return supervisor_rules.DefaultSupervision(b, k, c_max, window, idle_episodes)


def _with_star(returns=(1.0, 2.0, 3.0), claim=0.0, **options):
  """A machine whose star is candidate 0, accepted with these returns."""
  machine = _default(b=len(returns) - 1, **options)
  assert machine.offer(0, claim)
  for episode_return in returns:
    machine.finish(machine.next_episode(), episode_return)
  assert machine.star == 0
  return machine


def _trial(machine, returns):
  """Plays a whole trial and returns the last verdict."""
  for episode_return in returns:
    ticket = machine.next_episode()
    assert ticket.kind == 'trial', ticket
    verdict = machine.finish(ticket, episode_return)
  return verdict


def test_without_a_candidate_no_episode_is_run():
  assert _default().next_episode() is None
  assert supervisor_rules.LiteralSupervision(2, 200.0).next_episode() is None


def test_the_slot_keeps_the_highest_claim_and_the_first_of_equals():
  machine = _default()
  assert machine.bar == -INF
  claims = [1.0, 3.0, 3.0, 2.0, math.nan, INF, -INF]
  kept = [machine.offer(i, claim) for i, claim in enumerate(claims)]
  assert kept == [True, True, False, False, False, False, False]
  assert machine.bar == 3.0
  assert machine.next_episode() == supervisor_rules.Ticket('trial', 1)
  assert machine.bar == -INF  # the slot is free while the trial runs
  assert machine.offer(7, -5.0)


def test_a_candidate_below_the_claim_bar_waits_until_the_swarm_idles():
  machine = _with_star(claim=10.0, idle_episodes=2)
  assert machine.offer(1, 10.0)  # not above the bar
  for _ in range(2):
    ticket = machine.next_episode()
    assert ticket == supervisor_rules.Ticket('confirmation', 0)
    machine.finish(ticket, 0.0)
  assert machine.next_episode() == supervisor_rules.Ticket('trial', 1)
  # The next one waits as long again.
  machine.drop_trial()
  assert machine.offer(2, 10.0)
  assert machine.next_episode() == supervisor_rules.Ticket('confirmation', 0)


def test_without_a_star_any_candidate_gets_a_trial():
  # Nothing is confirmed, so it would wait for ever for the swarm to idle.
  machine = _default()
  machine.offer(0, 9.0)
  machine.next_episode()
  assert machine.drop_trial() == 0
  assert machine.offer(1, 3.0)
  assert machine.next_episode() == supervisor_rules.Ticket('trial', 1)


def test_a_rejection_raises_the_claim_bar_and_changes_nothing_else():
  machine = _with_star(claim=1.0)
  before = (machine.star, machine.x, machine.c, machine.r_star, machine.hist)
  assert machine.offer(1, 9.0)
  # An equal mean is no reason to change.
  assert _trial(machine, [2.0, 2.0, 2.0]) == supervisor_rules.Verdict(None, 1)
  assert before == (
    machine.star, machine.x, machine.c, machine.r_star, machine.hist
  )  # fmt: skip
  assert (machine.claim_bar, machine.rejected, machine.idle) == (9.0, 1, 0)
  assert machine.offer(2, 8.0)
  assert machine.next_episode().kind == 'confirmation'
  assert machine.offer(3, 9.5)
  assert machine.next_episode() == supervisor_rules.Ticket('trial', 3)


def test_an_accepted_candidate_brings_its_own_claim_even_if_it_is_lower():
  machine = _with_star(claim=10.0, idle_episodes=1)
  machine.offer(1, 4.0)
  machine.finish(machine.next_episode(), 0.0)
  assert _trial(machine, [1.5, 1.0, 6.0]) == supervisor_rules.Verdict(1, None)
  assert machine.claim_bar == 4.0
  # R_star was 1.5: two of the three returns are wins, and b is not exceeded.
  assert (machine.x, machine.c, machine.accepted) == (2, 0.0, 2)


def test_wins_count_from_r_star_on_and_pull_above_b():
  machine = _with_star((2.0, 2.0, 2.0), window=100)
  assert machine.x == 3  # against minus infinity all are wins
  assert machine.c == pytest.approx(math.atan(3 / 400))
  for episode_return, x in ((2.0, 4), (1.0, 4), (1.7, 4), (9.0, 5)):
    machine.finish(machine.next_episode(), episode_return)
    assert machine.x == x
    assert machine.c == pytest.approx(math.atan(x / 400))


def test_the_weight_stays_below_c_max():
  machine = _with_star((1.0, 1.0), k=2.0, c_max=0.3)
  assert math.atan(2 / 2) > 0.3
  assert machine.c == 0.3
  # A swarm without a pull, as in an ablation.
  assert _with_star((1.0, 1.0), k=2.0, c_max=0.0).c == 0.0


def test_r_star_is_the_mean_of_the_last_window():
  machine = _with_star((1.0, 2.0, 3.0), window=4)
  for episode_return in (10.0, 20.0):
    machine.finish(machine.next_episode(), episode_return)
  assert machine.hist == [2.0, 3.0, 10.0, 20.0]
  assert machine.r_star == 8.75


def test_several_supervisors_share_a_trial_in_the_order_they_end():
  machine = _default(b=2)
  machine.offer(0, 0.0)
  tickets = [machine.next_episode() for _ in range(4)]
  # Three episodes decide; the fourth supervisor has nothing to do yet.
  assert tickets == [supervisor_rules.Ticket('trial', 0)] * 3 + [None]
  for ticket, episode_return in zip(tickets, (3.0, 1.0)):
    assert machine.finish(ticket, episode_return) == supervisor_rules.Verdict(
      None, None
    )
  assert machine.finish(tickets[2], 2.0) == supervisor_rules.Verdict(0, None)
  assert machine.hist == [3.0, 1.0, 2.0]
  machine.offer(1, 1.0)
  tickets = [machine.next_episode() for _ in range(4)]
  assert tickets[3] == supervisor_rules.Ticket('confirmation', 0)


@pytest.mark.parametrize('seed', range(5))
def test_any_number_of_supervisors_keeps_the_rules(seed):
  """Random arrivals and endings against a record of what was reported."""
  rng = np.random.default_rng(seed)
  b, window = 3, 6
  machine = _default(b=b, window=window)
  flying, number, decided = [], 0, 0
  trials, star_returns, star = {}, [], None
  for _ in range(2000):
    if rng.random() < 0.2:
      machine.offer(number, float(rng.normal(number / 50)))
      number += 1
    if len(flying) < 4 and (ticket := machine.next_episode()):
      flying.append(ticket)
    if not flying or rng.random() < 0.5:
      continue
    ticket = flying.pop(rng.integers(len(flying)))
    if rng.random() < 0.1:
      machine.cancel(ticket)
      continue
    got = float(rng.normal(ticket.candidate / 50))
    r_star = np.mean(star_returns) if star_returns else -INF
    verdict = machine.finish(ticket, got)
    if ticket.kind == 'trial':
      returns = trials.setdefault(ticket.candidate, [])
      returns.append(got)
      assert len(returns) <= b + 1
      if len(returns) == b + 1:
        decided += 1
        better = np.mean(returns) > r_star
        assert verdict == (
          supervisor_rules.Verdict(ticket.candidate, None)
          if better
          else supervisor_rules.Verdict(None, ticket.candidate)
        )
        if better:
          star, star_returns = ticket.candidate, returns[-window:]
    elif ticket.candidate == star:
      star_returns = (star_returns + [got])[-window:]
    assert machine.star == star
    assert machine.hist == star_returns
  assert decided == machine.accepted + machine.rejected
  assert machine.accepted > 3 and machine.rejected > 3


def test_a_trial_goes_on_when_a_supervisor_is_gone():
  machine = _default(b=1)
  machine.offer(0, 0.0)
  lost, kept = machine.next_episode(), machine.next_episode()
  assert machine.next_episode() is None
  machine.cancel(lost)
  assert machine.next_episode() == supervisor_rules.Ticket('trial', 0)
  machine.finish(kept, 1.0)
  assert machine.finish(kept, 2.0) == supervisor_rules.Verdict(0, None)


def test_a_trial_that_takes_too_long_counts_as_a_rejection():
  machine = _with_star(claim=1.0)
  assert machine.drop_trial() is None
  machine.offer(1, 5.0)
  machine.finish(machine.next_episode(), 100.0)
  assert machine.drop_trial() == 1
  assert (machine.star, machine.claim_bar, machine.rejected) == (0, 5.0, 1)
  assert machine.next_episode() == supervisor_rules.Ticket('confirmation', 0)


def test_late_episodes_do_not_move_the_swarm():
  machine = _with_star(claim=1.0)
  old_star = machine.next_episode()
  machine.offer(1, 5.0)
  late_trial = machine.next_episode()
  machine.drop_trial()
  machine.offer(2, 6.0)
  _trial(machine, [7.0, 8.0, 9.0])
  assert machine.star == 2
  before = dataclasses.asdict(machine)
  for ticket in (old_star, late_trial):
    assert machine.finish(ticket, 1000.0) == supervisor_rules.Verdict(
      None, None
    )
    machine.cancel(ticket)
    assert dataclasses.asdict(machine) == before


def test_a_late_episode_does_not_count_in_the_trial_that_follows():
  machine = _with_star(claim=1.0)
  machine.offer(1, 5.0)
  late = machine.next_episode()
  machine.drop_trial()
  machine.offer(2, 6.0)
  machine.next_episode()
  machine.cancel(late)
  machine.finish(late, 1000.0)
  assert machine.trial_returns == []
  assert machine.trial_in_flight == 1


def test_the_literal_machine_forgets_an_episode_of_what_it_no_longer_tests():
  machine = supervisor_rules.LiteralSupervision(b=1, k=200.0)
  machine.offer(0, 0.0)
  late = machine.next_episode()
  machine.offer(1, 0.0)
  assert machine.next_episode() == supervisor_rules.Ticket('trial', 1)
  assert machine.finish(late, 1000.0) == supervisor_rules.Verdict(None, None)
  assert (machine.x, machine.drop_trial(), machine.bar) == (0, None, -INF)
  assert (machine.accepted, machine.rejected) == (0, 1)
  assert not machine.offer(2, math.nan)


def test_literal_episodes_of_theta_star_are_confirmations():
  machine = supervisor_rules.LiteralSupervision(b=1, k=200.0)
  machine.offer(0, 0.0)
  for _ in range(2):
    ticket = machine.next_episode()
    assert ticket.kind == 'trial'
    machine.finish(ticket, 5.0)
  assert machine.star == 0
  ticket = machine.next_episode()
  assert ticket == supervisor_rules.Ticket('confirmation', 0)
  # One star, however often it is published, and no reject when it makes way.
  assert machine.finish(ticket, 5.0) == supervisor_rules.Verdict(0, None)
  machine.offer(1, 0.0)
  machine.next_episode()
  assert (machine.accepted, machine.rejected) == (1, 0)


def test_a_checkpoint_in_mid_trial_asks_again_for_what_was_in_flight():
  machine = _with_star(claim=1.0)
  machine.offer(1, 5.0)
  machine.finish(machine.next_episode(), 4.0)
  machine.next_episode()
  machine.offer(2, 3.0)
  restored = _default()
  supervisor_rules.restore(
    restored, json.loads(json.dumps(dataclasses.asdict(machine)))
  )
  assert restored.trial == (1, 5.0)
  assert restored.waiting == (2, 3.0)
  tickets = [restored.next_episode() for _ in range(3)]
  assert [t.kind for t in tickets] == ['trial', 'trial', 'confirmation']
  restored.finish(tickets[0], 5.0)
  assert restored.finish(tickets[1], 6.0) == supervisor_rules.Verdict(1, None)
  assert restored.hist == [4.0, 5.0, 6.0]


def test_a_restored_machine_goes_by_its_own_config():
  machine = _with_star((1.0, 2.0, 3.0), k=2.0, c_max=0.1)
  machine.offer(1, 5.0)
  _trial(machine, (4.0, 5.0))
  numbers = {'b': 1, 'k': 1.0, 'c_max': 0.7, 'window': 2, 'idle_episodes': 9}
  restored = _default(**numbers)
  supervisor_rules.restore(
    restored, json.loads(json.dumps(dataclasses.asdict(machine)))
  )
  for name, number in numbers.items():
    assert getattr(restored, name) == number
  # Three wins are more than b: c would be atan(3 / 1), above the clamp of now.
  assert (restored.x, restored.c) == (3, 0.7)
  assert restored.hist == [2.0, 3.0]
  # A whole trial of now has run: it is decided by one more episode.
  assert _trial(restored, (6.0,)) == supervisor_rules.Verdict(1, None)


def test_a_checkpoint_is_a_copy():
  machine = _with_star()
  state = dataclasses.asdict(machine)
  before = json.dumps(state)
  machine.finish(machine.next_episode(), 50.0)
  assert json.dumps(state) == before


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'claim_mode': 'loss'}, "swarm.claim_mode='loss'.*'return', 'target'"),
    ({'supervisor': 'none'}, "swarm.supervisor='none'.*'default', 'literal'"),
    ({'r_mode': 'vector'}, "swarm.r_mode='vector'.*'scalar', 'elementwise'"),
    ({'lr_spread': 'x'}, "swarm.lr_spread='x'.*'decades', 'paper', 'none'"),
    ({'pull_mode': 'x'}, "swarm.pull_mode='x'.*'better', 'always'"),
    ({'num_explorers': 0}, '--config.swarm.num_explorers'),
    ({'num_explorers': 2.5}, 'num_explorers=2.5 must be a whole number'),
    ({'explorers_per_node': 0}, '--config.swarm.explorers_per_node'),
    ({'num_supervisors': 0}, '--config.swarm.num_supervisors'),
    ({'b': 0}, '--config.swarm.b'),
    ({'star_poll_steps': 0}, '--config.swarm.star_poll_steps'),
    ({'claim_episodes': 0}, '--config.swarm.claim_episodes'),
    ({'window': 0}, '--config.swarm.window'),
    ({'idle_episodes': 0}, '--config.swarm.idle_episodes'),
    ({'k': 0.0}, 'swarm.k=0.0 must be a positive'),
    ({'c_max': -0.1}, 'swarm.c_max=-0.1 must be a number.*, or None'),
    ({'inertia': 1.0}, 'swarm.inertia=1.0 must be at least 0 and below'),
    ({'inertia': -0.1}, 'swarm.inertia=-0.1 must be at least 0 and below'),
    ({'b': 5, 'window': 5}, 'swarm.b=5 must be below swarm.window=5'),
    ({'trial_timeout_s': 0.0}, 'swarm.trial_timeout_s=0.0 must be'),
    ({'star_max_age_s': -1.0}, 'swarm.star_max_age_s=-1.0 must be'),
    ({'confirmation_period_s': -1.0}, 'swarm.confirmation_period_s=-1.0'),
  ],
)
def test_a_config_that_cannot_work_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    explorers.Config(**options)


def test_the_config_chooses_the_machine():
  literal = supervisor_rules.make_supervision(
    explorers.Config(supervisor='literal', b=20)  # It has no window.
  )
  assert literal == supervisor_rules.LiteralSupervision(b=20, k=200.0)
  default = supervisor_rules.make_supervision(
    explorers.Config(c_max=None, window=9)
  )
  assert default == _default(b=3, window=9, idle_episodes=6)
