"""Flat storage: the parameters, gradients and moments of an optimizer as contiguous memory, and segments of it."""
