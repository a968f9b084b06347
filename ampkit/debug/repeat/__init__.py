"""Repeating a step with a cure applied, to see whether it works before it is named."""
