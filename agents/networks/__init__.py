"""Networks in TensorFlow and their NumPy twins."""
