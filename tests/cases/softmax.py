from ampkit.testing import Case, normal

CASES = [
    Case("softmax", normal(3, 5), -1),
    Case("softmax", normal(3, 5), 0),
    Case("softmax", normal(2, 3, 4), 1),
    Case("softmax", normal(), 0),
    Case("softmax", normal(0, 3), 1),
    Case("softmax", normal(3, 0), 1),
    Case("softmax", normal(2, 3), 1, dtype="float64"),
    Case("softmin", normal(3, 5), -1),
    Case("log_softmax", normal(3, 5), -1),
    Case("log_softmax", normal(3, 5), 0),
    Case("log_softmax", normal(2, 3, 4), 1),
    Case("log_softmax", normal(), -1),
    Case("log_softmax", normal(3, 0), 1),
    Case("logsumexp", normal(3, 5), 1),
    Case("logsumexp", normal(3, 5), -2, keepdim=True),
    Case("logsumexp", normal(2, 3, 4), (0, 2)),
    Case("logsumexp", normal(2, 3, 4), (0, -1), keepdim=True),
    Case("logsumexp", normal(), 0),
]
