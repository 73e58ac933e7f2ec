"""What travels from environments to a learner: table, adder, feed, sampler."""
