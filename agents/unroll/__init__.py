"""What agents that learn from unrolls share (IMPALA, A2C, PPO)."""
