"""Numbers: one preset for each agent and environment."""
