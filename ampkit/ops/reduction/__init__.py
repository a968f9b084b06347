"""Reductions, cumulative ops, norms, sorting and statistics."""
