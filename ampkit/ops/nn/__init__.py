"""Neural-network ops: attention, convolution, normalization, pooling, recurrence, embedding and dropout."""
