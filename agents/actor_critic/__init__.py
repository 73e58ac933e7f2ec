"""What DDPG, TD3, D4PG and SAC share."""
