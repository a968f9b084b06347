from ampkit.testing import Case, booleans, normal

CASES = [  # those that no draw decides; test_noise.py has the others
    Case("alpha_dropout", normal(3, 5)),
    Case("alpha_dropout", normal(3, 5), p=1.0, training=True),
    Case("alpha_masked", normal(3, 5), booleans(3, 5), 0.3),
    Case("alpha_masked", normal(3, 4, 5), booleans(3, 4, 1), 0.6),
    Case("feature_alpha_dropout", normal(3, 5), p=0.0, training=True),
    Case("rrelu", normal(3, 5), 0.1, 0.5),
]
