"""Murmuration as a library.

    import murmuration as mm

    run = mm.train('ppo', 'CartPole-v1', steps=100_000)
    print(run.evaluate(20))
    action = run.policy(observation)
    run.save('my_run')

Importing it is light: TensorFlow works in processes of its own, never in the
one that imports this (docs/library.md).
"""

from murmuration.runs import STOP
from murmuration.runs import Evaluation
from murmuration.runs import Run
from murmuration.runs import load
from murmuration.runs import train

__all__ = ['STOP', 'Evaluation', 'Run', 'load', 'train']
