"""CPU kernels of indexing ops."""
