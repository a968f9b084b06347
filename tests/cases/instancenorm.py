from ampkit.testing import Case, normal, uniform

CASES = [
    Case("instance_norm", normal(2, 3, 5)),
    Case("instance_norm", normal(2, 3, 4, 3), None, None, normal(3), normal(3), eps=0.1),
    Case("instance_norm", normal(2, 3, 5), normal(3), uniform(0.5, 2, 3), normal(3), use_input_stats=False),
    Case("instance_norm", normal(0, 3, 5), weight=normal(3)),
    Case("local_response_norm", normal(2, 6, 3), 3, 0.5),
    Case("local_response_norm", normal(2, 5), 4, 0.5, 0.3, 0.7),
    Case("local_response_norm", normal(2, 2, 3, 2), 5),
    Case("local_response_norm", normal(0, 4, 2), 2),
]
