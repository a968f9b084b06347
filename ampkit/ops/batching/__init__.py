"""How ops run once over the samples of a `vmap`: a table with a line per group of ops, and the rules of products,
convolutions, normalizations, losses and embeddings, whose weights have gradients of each sample.
"""

from .table import give_rules as give_rules
