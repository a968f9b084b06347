"""The CPU backend: NumPy arrays, oneDNN."""
