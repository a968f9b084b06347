from ampkit.testing import Case, normal

CASES = [
    Case("max_pool2d", normal(2, 3, 4, 6), 2),
    Case("max_pool2d", normal(2, 3, 5, 7), (3, 2), stride=(2, 1), padding=1),
    Case("max_pool2d", normal(2, 3, 7, 7), 2, stride=3, dilation=2, ceil_mode=True),
    Case("max_pool2d", normal(2, 3, 6, 5), 3, stride=2, padding=1, ceil_mode=True, return_indices=True),
    Case("max_pool2d", normal(3, 5, 5), 2),
    Case("max_pool2d", normal(0, 3, 4, 4), 2),
    Case("avg_pool2d", normal(2, 3, 4, 6), 2),
    Case("avg_pool2d", normal(2, 3, 5, 7), (3, 2), stride=(2, 1), padding=1),
    Case("avg_pool2d", normal(2, 3, 5, 7), 3, stride=2, padding=1, count_include_pad=False),
    Case("avg_pool2d", normal(2, 3, 6, 5), 3, stride=2, padding=1, ceil_mode=True),
    Case("avg_pool2d", normal(2, 3, 6, 5), 2, stride=3, ceil_mode=True, count_include_pad=False),
    Case("avg_pool2d", normal(2, 3, 4, 4), 2, divisor_override=3),
    Case("avg_pool2d", normal(3, 5, 5), 2),
    Case("adaptive_avg_pool2d", normal(2, 3, 4, 6), 1),
    Case("adaptive_avg_pool2d", normal(2, 3, 4, 6), (2, 3)),
    Case("adaptive_avg_pool2d", normal(2, 3, 5, 7), (3, 2)),
    Case("adaptive_avg_pool2d", normal(2, 3, 2, 3), (3, None)),
    Case("adaptive_avg_pool2d", normal(3, 5, 5), 1),
]
