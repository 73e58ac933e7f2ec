"""One peer: the GALA-A2C agent of GALA's own repository, CartPole-v1.

  git clone https://github.com/facebookresearch/gala .peers/gala
  .peers/sb3/bin/python tests/benchmarks/peers/gala_a2c.py

The repository has one commit, and its licence forbids commercial use. Its
program plays Atari on GPUs; taken from it are what this compares with: agent,
policy (64x64, tanh, which is its own for such observations), storage, graph and
gossip buffer, with the settings of its README (fully connected, one peer, no
bound on staleness). Each learner is a process with one torch thread. Replaced
are its environments, which would be one process each: Stable-Baselines3's
vector steps them in the learner, which is faster for an environment as light.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import time
import types
from typing import Any
from unittest import mock

from stable_baselines3.common import env_util
import torch
from torch import multiprocessing

# From beside this file: packages here may bring a `tests` of their own.
import window

_CLONE = pathlib.Path(__file__).resolve().parents[3] / '.peers' / 'gala'
_TASK = 'CartPole-v1'
_STEPS = 5
_NO_BOUND = 10**8
_PACKAGES = ['torch', 'stable-baselines3', 'gymnasium', 'numpy']
_POLL_S = 0.05


def parts(clone: pathlib.Path) -> types.SimpleNamespace:
  """GALA's modules, without the Atari environments that they import."""
  sys.path.insert(0, str(clone))
  # gala.envs needs OpenAI Baselines; nothing of it is used but this name.
  envs: Any = types.ModuleType('gala.envs')
  envs.VecNormalize = type('VecNormalize', (), {})
  sys.modules['gala.envs'] = envs
  # pylint: disable=g-import-not-at-top
  from gala import gala_a2c
  from gala import gpu_gossip_buffer
  from gala import graph_manager
  from gala import model
  from gala import storage

  return types.SimpleNamespace(
    agent=gala_a2c.GALA_A2C,
    buffer=gpu_gossip_buffer.GossipBuffer,
    graph=graph_manager.FullyConnectedGraph,
    policy=model.Policy,
    storage=storage.RolloutStorage,
  )


def make_buffer(gala: Any, manager: Any, policy: Any, learners: int) -> Any:
  """The buffer of all learners, as its main.py makes it."""

  def events() -> Any:
    return manager.list(
      [
        manager.list([manager.Event() for _ in range(learners)])
        for _ in range(learners)
      ]
    )

  return gala.buffer(
    [gala.graph(rank, learners, peers_per_itr=1) for rank in range(learners)],
    policy,
    manager.list([manager.Lock() for _ in range(learners)]),
    events(),
    events(),
    manager.list([0] * learners),
    sync_freq=_NO_BOUND,
  )


def learn(
  gala: Any, rank: int, buffer: Any, num_envs: int, updates: Any
) -> None:
  """One learner, without an end; counts into `updates[rank]`."""
  torch.manual_seed(rank)
  torch.set_num_threads(1)
  sys.stdout = open(os.devnull, 'w')  # it prints at each message that is late
  envs = env_util.make_vec_env(_TASK, n_envs=num_envs, seed=rank)
  policy = gala.policy(envs.observation_space.shape, envs.action_space)
  agent = gala.agent(
    policy, 0.5, 0.01, lr=7e-4, eps=1e-5, alpha=0.99, max_grad_norm=0.5,
    rank=rank, gossip_buffer=buffer,
  )  # fmt: skip
  rollouts = gala.storage(
    _STEPS, num_envs, envs.observation_space.shape, envs.action_space,
    policy.recurrent_hidden_state_size,
  )  # fmt: skip
  rollouts.obs[0].copy_(torch.from_numpy(envs.reset()))
  ones = torch.ones(num_envs, 1)
  # The buffer waits for a GPU's stream, which a machine without one lacks.
  with mock.patch('torch.cuda.current_stream', mock.MagicMock()):
    while True:
      for step in range(_STEPS):
        with torch.no_grad():
          value, action, log_prob, hidden = policy.act(
            rollouts.obs[step],
            rollouts.recurrent_hidden_states[step],
            rollouts.masks[step],
          )
        observations, rewards, dones, _ = envs.step(action[:, 0].numpy())
        rollouts.insert(
          torch.from_numpy(observations), hidden, action, log_prob, value,
          torch.from_numpy(rewards)[:, None],
          torch.from_numpy(1.0 - dones)[:, None], ones,
        )  # fmt: skip
      with torch.no_grad():
        bootstrap = policy.get_value(
          rollouts.obs[-1],
          rollouts.recurrent_hidden_states[-1],
          rollouts.masks[-1],
        )
      rollouts.compute_returns(bootstrap, False, 0.99, 0.95, False)
      agent.update(rollouts)
      rollouts.after_update()
      updates[rank] += 1


def main() -> int:
  parser = window.parser(__doc__)
  parser.add_argument('--learners', type=int, default=2)
  parser.add_argument('--envs', type=int, default=16, help='of each learner')
  args = parser.parse_args()
  if not (_CLONE / 'gala' / 'gala_a2c.py').is_file():
    print(f'GALA is left out: {_CLONE} is no clone of its repository.')
    return os.EX_UNAVAILABLE
  torch.set_num_threads(1)
  gala = parts(_CLONE)
  view = window.Window(args.seconds)
  context = multiprocessing.get_context('fork')
  with window.scratch(), context.Manager() as manager:
    envs = env_util.make_vec_env(_TASK, n_envs=1)
    policy = gala.policy(envs.observation_space.shape, envs.action_space)
    buffer = make_buffer(gala, manager, policy, args.learners)
    updates = context.Array('q', args.learners, lock=False)
    learners = [
      context.Process(
        target=learn, args=(gala, rank, buffer, args.envs, updates), daemon=True
      )
      for rank in range(args.learners)
    ]
    with contextlib.ExitStack() as stack:
      for process in learners:
        process.start()
        stack.callback(process.kill)
      while view.see(
        sum(updates) * _STEPS * args.envs, sum(updates), all(updates)
      ):
        if not all(process.is_alive() for process in learners):
          raise RuntimeError('A learner of GALA ended; see above.')
        time.sleep(_POLL_S)
  window.report(
    view.result(
      'gala_a2c',
      _TASK,
      f'{args.learners} learners of {args.envs} environments, a process each',
      args.envs * _STEPS,
      _PACKAGES,
    )
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
