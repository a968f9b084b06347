"""The one call: words (dtypes, errors, observers), policy, primitives, tensors, the tape and ops."""
