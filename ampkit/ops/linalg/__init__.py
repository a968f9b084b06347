"""Linear algebra: matrix products, decompositions and solvers."""
