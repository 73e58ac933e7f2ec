"""What DDPG, TD3 and D4PG share."""
