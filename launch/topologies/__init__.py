"""The wiring of programs: groups, handles, counts and restart policies."""
