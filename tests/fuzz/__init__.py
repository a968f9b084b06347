"""Fuzzers: random calls of the public API, mutated files for the readers, random sequences of scaler calls."""
