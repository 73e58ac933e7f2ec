"""What runs inside a node."""
