"""Compiling and tracing, which ampkit does not do: Python code runs directly."""
