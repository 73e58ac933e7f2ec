"""Who talks to whom, and where each node runs."""
