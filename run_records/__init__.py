"""One run, one directory: what is kept of a run, and what is shown of it."""
