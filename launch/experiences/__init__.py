"""Kinds of experience that travel from actors to a learner."""
