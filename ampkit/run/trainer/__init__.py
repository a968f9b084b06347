"""A training of any model on any batches: `Trainer`, its callbacks, and `setup` for loops of one's own."""
