"""The rules of a swarm: pure state machines without a clock or a network."""
