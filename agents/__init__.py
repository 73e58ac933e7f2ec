"""What is learned. Nothing here knows of processes, Launchpad or Reverb."""
