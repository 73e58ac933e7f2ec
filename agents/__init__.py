"""What is learned. Nothing here depends on processes, Launchpad or Reverb."""
