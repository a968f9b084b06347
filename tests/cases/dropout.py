from ampkit.testing import Case, normal

CASES = [  # those that no draw decides; test_dropout.py has the others
    Case("dropout", normal(3, 5), training=False),
    Case("dropout", normal(3, 5), p=0.0),
    Case("dropout", normal(3, 5), p=1.0),
    Case("dropout", normal(0, 5), p=0.5),
    Case("dropout2d", normal(2, 3, 4, 5), p=1.0),
    Case("dropout1d", normal(3, 5), training=False),
    Case("dropout3d", normal(2, 3, 2, 2), p=0.0),
]
