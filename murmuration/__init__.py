"""Murmuration as a library.

    import murmuration as mm

    run = mm.train('ppo', 'CartPole-v1', steps=100_000)
    print(run.evaluate(20))
    action = run.policy(observation)
    run.save('my_run')

Importing it is light: TensorFlow works in processes of its own, never in the
one that imports this (docs/library.md).

The packages below it (murmuration.agents, murmuration.launch, ...) lie at the
top of the repository; here are links to them.
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
