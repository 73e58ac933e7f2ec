"""`python -m replay.inspect` looks into replay, running or saved."""
