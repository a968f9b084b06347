"""Pointwise ops: arithmetic, comparison, activations and special functions, element by element."""
