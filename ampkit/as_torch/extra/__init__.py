"""What modules of PyTorch have beside names of ampkit: one file each; without an `__all__`, what it defines."""
