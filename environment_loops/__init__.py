"""Where experience comes from: environments, loops over them, evaluation."""
