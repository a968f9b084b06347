from ampkit.testing import Case, integers, normal

CASES = [
    Case("embedding", integers(0, 7, 4, 5), normal(7, 3)),
    Case("embedding", integers(0, 7), normal(7, 3)),
    Case("embedding", integers(0, 7, 0, 5), normal(7, 3)),
    Case("embedding", integers(0, 7, 4), normal(7, 0)),
    Case("sum_rows", normal(5, 4, 3), integers(0, 6, 5, 4), rows=6),
]
