from ampkit.testing import Case, normal

CASES = [  # those that no draw decides; test_dropout.py has the others
    Case("dropout", normal(3, 5), training=False),
    Case("dropout", normal(3, 5), p=0.0),
    Case("dropout", normal(3, 5), p=1.0),
    Case("dropout", normal(0, 5), p=0.5),
]
