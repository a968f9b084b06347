"""Launchers that several kernels share: elementwise, reductions, rows, flat memory, segments, padding."""
