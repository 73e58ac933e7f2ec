"""Acme, both ways: our actors in its loop, its agents in our topologies.

actor    an `acme.core.Actor` of any agent
agent    a stock TensorFlow agent by its parts
learner  drives a stock `acme.Learner` as TFLearner is driven
dqn      Acme's own DQN
d4pg     Acme's own D4PG
"""
