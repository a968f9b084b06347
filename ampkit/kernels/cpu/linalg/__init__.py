"""CPU kernels of linear algebra."""
