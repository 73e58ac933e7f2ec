"""One run, one directory: what is kept of a run, and what is shown of it."""

if __name__ == 'run_records':
  raise ImportError('import it as murmuration.run_records')
