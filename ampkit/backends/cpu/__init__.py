"""The CPU: NumPy arrays."""
