"""The layers and losses of `ampkit.nn`, by kind."""
