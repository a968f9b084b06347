"""CPU kernels of gradient accumulation."""
