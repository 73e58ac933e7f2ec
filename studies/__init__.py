"""What docs/results/ is made by: plans, runs, statistics, tables, plots."""
