"""Makes docs/results/: plans, runs, statistics, tables, plots."""
