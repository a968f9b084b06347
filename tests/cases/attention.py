from ampkit.testing import Case, booleans, normal

NAME = "scaled_dot_product_attention"

CASES = [
    Case(NAME, normal(2, 3, 4, 5), normal(2, 3, 6, 5), normal(2, 3, 6, 2)),
    Case(NAME, normal(2, 3, 4, 5), normal(2, 3, 4, 5), normal(2, 3, 4, 5), is_causal=True),
    Case(NAME, normal(2, 6, 5), normal(2, 3, 5), normal(2, 3, 5), is_causal=True, scale=0.5),
    Case(NAME, normal(4, 5), normal(6, 5), normal(6, 2)),
    Case(NAME, normal(2, 1, 4, 5), normal(3, 6, 5), normal(1, 3, 6, 2)),
    Case(NAME, normal(2, 3, 4, 5), normal(2, 3, 6, 5), normal(2, 3, 6, 5), normal(4, 6)),
    Case(NAME, normal(2, 3, 4, 5), normal(2, 3, 6, 5), normal(2, 3, 6, 5), normal(2, 1, 1, 6)),
    Case(NAME, normal(2, 3, 4, 5), normal(2, 3, 6, 5), normal(2, 3, 6, 5), booleans(2, 1, 4, 6)),
    Case(NAME, normal(3, 2, 5), normal(3, 1, 5), normal(3, 1, 5), booleans(3, 2, 1)),
    Case(NAME, normal(2, 4, 3, 5), normal(2, 2, 6, 5), normal(2, 2, 6, 5), enable_gqa=True),
    Case(NAME, normal(4, 3, 5), normal(1, 3, 5), normal(1, 3, 5), is_causal=True, enable_gqa=True),
    Case(NAME, normal(2, 4, 3, 5), normal(2, 2, 6, 5), normal(2, 2, 6, 5), normal(2, 4, 3, 6), enable_gqa=True),
    Case("self_attention", normal(2, 4, 30), 2),
    Case("self_attention", normal(2, 4, 30), 2, is_causal=True),
    Case("self_attention", normal(1, 3, 6), 1),
    Case("self_attention", normal(0, 3, 12), 2),
]
