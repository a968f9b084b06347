"""What other processes do with tensors that are shared with them: a module, so that these can import it."""

import pickle

import ampkit
from ampkit import optim


def train(model, path):
    """Take one step, and write the parameters as this process sees them."""
    optimizer = optim.Adam(model.parameters(), lr=0.5)
    model(ampkit.ones(4, 3)).sum().backward()
    optimizer.step()
    path.write_bytes(pickle.dumps([p.tolist() for p in model.parameters()]))


def add_one(*tensors):
    """Change the tensors in place."""
    for tensor in tensors:
        tensor += 1
