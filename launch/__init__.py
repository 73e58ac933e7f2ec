"""Who talks to whom, and where each node runs."""

if __name__ == 'launch':
  raise ImportError('import it as murmuration.launch')
