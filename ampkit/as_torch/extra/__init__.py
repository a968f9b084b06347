"""What modules of PyTorch have beside names of ampkit: one file each."""
