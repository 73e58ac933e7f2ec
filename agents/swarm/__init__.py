"""The rules of a swarm: pure state machines without clock or network."""
