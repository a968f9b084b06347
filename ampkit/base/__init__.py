"""What every other package builds on: dtypes, errors, file access, observers, version counters."""
