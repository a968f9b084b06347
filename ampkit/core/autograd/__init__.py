"""Automatic differentiation: nodes, the tape, gradient accumulation, hooks, views, recomputation, double backward."""
