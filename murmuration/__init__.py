"""Murmuration as a library.

    import murmuration as mm

    run = mm.train('ppo', 'CartPole-v1', steps=100_000)
    print(run.evaluate(20))
    action = run.policy(observation)
    run.save('my_run')

Importing it is fast: training happens in other processes, and TensorFlow is
never imported here (docs/library.md).

The packages murmuration.agents, murmuration.launch and so on are links to the
folders at the top of the repository.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from murmuration.runs import STOP
  from murmuration.runs import Evaluation
  from murmuration.runs import Run
  from murmuration.runs import load
  from murmuration.runs import train

__all__ = ['STOP', 'Evaluation', 'Run', 'load', 'train']


def __getattr__(name: str) -> Any:
  # Only when it is asked for: every module of the project imports this one.
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  from murmuration import runs

  return getattr(runs, name)
