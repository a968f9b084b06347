from ampkit.testing import Case, integers, normal

CASES = [
    Case("embedding_bag", integers(0, 7, 4, 5), normal(7, 3)),
    Case("embedding_bag", integers(0, 3, 4, 5), normal(3, 2), mode="sum", padding_idx=1),
    Case("embedding_bag", integers(0, 3, 4, 5), normal(3, 2), padding_idx=-1),
    Case("embedding_bag", integers(0, 3, 4, 5), normal(3, 2), mode="max", padding_idx=1),
    Case("embedding_bag", integers(0, 7, 9), normal(7, 3), integers(0, 1, 2), mode="max"),
    Case("embedding_bag", integers(0, 7, 9), normal(7, 3), integers(0, 1, 1)),
    Case("embedding_bag", integers(0, 7, 4, 3), normal(7, 2), mode="sum", per_sample_weights=normal(4, 3)),
    Case("embedding_bag", integers(0, 7, 3, 0), normal(7, 2)),
]
