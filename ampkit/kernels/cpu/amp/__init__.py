"""CPU kernels of loss scaling."""
