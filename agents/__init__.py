"""What is learned. Nothing here depends on processes, Launchpad or Reverb."""

if __name__ == 'agents':
  raise ImportError('import it as murmuration.agents')
