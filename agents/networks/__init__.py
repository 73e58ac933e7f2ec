"""Networks in TensorFlow, and their NumPy counterparts."""
