"""A script that writes a run directory and does no learning."""

# Evaluations at each fifth of the budget, return = 10 * seed + fifth. Modes:
# 'crash' dies after the second, 'early' before the first, 'fail' before
# anything, 'wait' does not end, 'swarm' has a supervisor, 'refused' shows no
# config.
SCRIPT = """
import json, os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.default_int_handler)
flags = dict(arg.lstrip('-').partition('=')[::2] for arg in sys.argv[1:])
config = {'environment': 'CartPole-v1', 'seed': int(flags['seed']),
          'agent': {'learning_rate': float(os.environ.get('PRESET', 1.0))}}
if flags.get('mode') == 'refused':
  print('error: there is no agent of that name')
  sys.exit(2)
if 'print-config' in flags:
  print(json.dumps(config))
  sys.exit(0)
path = pathlib.Path(flags['run_dir'])
with open(path.parent / 'started.txt', 'a') as file:
  file.write(path.name + chr(10))
mode = flags.get('mode', '')
if os.environ.get('REPAIRED'):
  mode = ''
if mode == 'usage':
  print('error: no such flag')
  sys.exit(2)
if mode == 'fail':
  raise RuntimeError('half an edit')
(path / 'metrics').mkdir(parents=True)
(path / 'config.json').write_text(json.dumps(config))
if mode == 'early':
  sys.exit(1)
budget = int(flags['config.run.steps_per_agent'])
seed, count = int(flags['seed']), int(flags.get('config.single.num_agents', 1))
rows = []
for fifth in range(6):
  steps = budget * fifth // 5
  value = 10.0 * seed + fifth
  rows.append({'actor_steps': steps * count, 'actor_steps_per_member': steps,
               'return_mean': value, 'returns': [
                 # Agent i is the best on the first two of five episodes at
                 # every third evaluation; the last three say 100 i + fifth.
                 10.0 * (fifth % 3 == i) if e < 2 else 100.0 * i + fifth
                 for i in range(count) for e in range(5)],
               'elapsed_s': 1.0 + fifth * (1 + seed),
               'member_returns': [value + 10 * i for i in range(count)]})
  text = ''.join(json.dumps(row) + chr(10) for row in rows)
  (path / 'metrics' / 'evaluation.jsonl').write_text(text)
  (path / 'metrics' / 'counter.json').write_text(
    json.dumps({'latest': {'evaluation': rows[-1]}}))
  if fifth == 2:
    try:
      while mode == 'wait':
        (path / 'metrics' / 'waiting').touch()
        time.sleep(0.05)
    except KeyboardInterrupt:
      (path.parent / 'asked_to_stop.txt').touch()
      sys.exit(143)
    if mode == 'crash':
      sys.exit(1)
totals = {'actor_steps': budget * count}
if mode == 'swarm':
  totals['supervisor_steps'] = 70 + 2 * seed
(path / 'summary.json').write_text(
  json.dumps({'totals': totals, 'elapsed_s': 99.0}))
"""


def started(out):
  path = out / 'fake' / 'runs' / 'started.txt'
  return path.read_text().split() if path.exists() else []
