"""The compiled CPU kernels: how they are built, found, loaded and called."""
