"""What a caller hears of a run that trains, from the files of the run."""

import threading
import time

from murmuration import choices
from murmuration import news
from murmuration.launch import cell as cell_lib
from murmuration.launch.services import counter as counter_lib
from murmuration.run_records import counter_file
from murmuration.run_records import metrics


def test_a_file_that_is_broken_costs_its_own_news_alone_and_is_said_once(
  tmp_path, monkeypatch
):
  directory = tmp_path / 'metrics'
  directory.mkdir()
  asked = news.News(tmp_path, 1000)
  (directory / 'counter.json').write_text('{')
  (directory / 'evaluation.jsonl').write_text('{"return_mean": 1.0}\n')
  (kind, line), evaluation = asked()
  assert kind == 'warning' and 'counter.json' in line
  assert evaluation == ('evaluation', {'return_mean': 1.0})
  assert [*asked()] == []
  # And the other way round.
  with (directory / 'evaluation.jsonl').open('a') as file:
    file.write('{\n')
  found = {'totals': {'actor_steps': 3}, 'elapsed_s': 1.0}
  monkeypatch.setattr(counter_file, 'counted', lambda directory: found)
  (kind, tick), (_, line) = asked()
  assert (kind, tick['steps'], tick['budget']) == ('tick', 3, 1000)
  assert 'evaluation' in line
  assert [kind for kind, _ in asked()] == ['tick']


def test_what_cannot_be_read_now_comes_later(tmp_path, monkeypatch):
  def counted(directory):
    raise OSError('cannot be read now')

  asked = news.News(tmp_path, 1000)
  with monkeypatch.context() as patch:
    patch.setattr(counter_file, 'counted', counted)
    assert [*asked()] == []
  found = {'totals': {}, 'elapsed_s': 1.0}
  monkeypatch.setattr(counter_file, 'counted', lambda directory: found)
  assert len([*asked()]) == 1


def test_evaluations_are_told_once_and_whole_and_those_of_before_are_not(
  tmp_path,
):
  directory = tmp_path / 'metrics'
  directory.mkdir()
  path = directory / 'evaluation.jsonl'
  path.write_text('{"return_mean": 1}\n{"return_')  # killed, and resumed
  asked = news.News(tmp_path, 1000, told=news.end_of_evaluations(tmp_path))
  told = []
  writer = metrics.MetricsWriter(directory)
  for number in (2, 3, 4):
    writer.row('evaluation', {'return_mean': number})
    with path.open('a') as file:
      file.write('{"return_')  # still being written
    told += [row['return_mean'] for _, row in asked()]
    writer.close()
    writer = metrics.MetricsWriter(directory)
  assert told == [2, 3, 4]


def test_steps_never_fall_while_the_counter_saves(tmp_path):
  def quick():
    return 100 * time.monotonic()  # it saves every 5 ms

  counter = counter_lib.Counter(tmp_path, clock=quick)
  asked, stop = news.News(tmp_path, 1000), threading.Event()

  def work():
    steps = 0
    while not stop.is_set():
      steps += 1
      counter.report('worker/0', {'actor_steps': steps})
      counter.hold('worker/0', 0.0)

  thread = threading.Thread(target=work)
  thread.start()
  try:
    told = [tick['steps'] for _ in range(1000) for _, tick in asked()]
  finally:
    stop.set()
    thread.join()
  assert len(set(told)) > 10
  assert told == sorted(told)


def test_offline_steps_are_those_in_which_a_run_makes_the_updates():
  cell = cell_lib.resolve('d4pg', topology='offline')
  of_update = choices.steps_per_update(cell)
  assert news.steps_made({'learner_steps': 100}, of_update) == 400  # its pace
  cell = cell_lib.resolve('d4pg')
  of_update = choices.steps_per_update(cell)
  assert news.steps_made({'actor_steps': 3, 'learner_steps': 9}, of_update) == 3
