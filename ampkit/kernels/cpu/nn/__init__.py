"""CPU kernels of neural-network ops."""
