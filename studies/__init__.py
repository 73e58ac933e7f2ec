"""Makes docs/results/: plans, runs, statistics, tables, plots."""

if __name__ == 'studies':
  raise ImportError('import it as murmuration.studies')
