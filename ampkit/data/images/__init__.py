"""Image files: reading them, checking a folder of them before training."""
