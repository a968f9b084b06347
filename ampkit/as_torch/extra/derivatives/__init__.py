"""`torch.autograd` and `torch.func`: names that ampkit has elsewhere, or that change no result."""
