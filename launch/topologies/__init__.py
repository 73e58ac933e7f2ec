"""Who talks to whom. Only wiring: groups, handles, counts, restart policies."""
