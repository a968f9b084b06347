"""Operators by name, the keys of PyTorch's dispatcher, and the functions that classes of tensors take over."""
