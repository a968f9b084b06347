from ampkit.testing import Case, normal

CASES = [
    Case("bilinear", normal(5, 3), normal(5, 4), normal(2, 3, 4), normal(2)),
    Case("bilinear", normal(2, 5, 3), normal(2, 5, 2), normal(4, 3, 2)),
    Case("bilinear", normal(3), normal(4), normal(2, 3, 4), normal(2)),
    Case("bilinear", normal(0, 3), normal(0, 4), normal(2, 3, 4), normal(2)),
]
