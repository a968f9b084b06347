"""Fuzzers: random calls of the public API, random sequences of scaler calls."""
