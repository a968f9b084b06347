from ampkit.testing import Case, integers, normal

CASES = [
    Case("ctc_loss", normal(6, 2, 4), integers(1, 4, 2, 2), [6, 5], [2, 1]),
    Case("ctc_loss", normal(5, 3, 5), integers(0, 4, 5), [5, 3, 4], [2, 1, 2], 4, "sum"),
    Case("ctc_loss", normal(5, 3, 4), integers(1, 4, 3, 3), [5, 1, 0], [2, 2, 0], reduction="none", zero_infinity=True),
    Case("ctc_loss", normal(5, 4), integers(1, 4, 2), 5, 2),
    Case("ctc_loss", normal(4, 0, 3), integers(1, 3, 0, 2), [], [], reduction="sum"),
]
