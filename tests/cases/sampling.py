from ampkit.testing import Case, normal, uniform

CASES = [
    Case("grid_sample", normal(2, 3, 4, 5), uniform(-0.9, 0.9, 2, 3, 2, 2)),
    Case("grid_sample", normal(1, 2, 3, 4), uniform(-1.7, 1.7, 1, 3, 4, 2), align_corners=True),
    Case("grid_sample", normal(1, 2, 3, 4), uniform(-1.7, 1.7, 1, 3, 4, 2), padding_mode="border"),
    Case("grid_sample", normal(1, 2, 3, 4), uniform(-2.7, 2.7, 1, 3, 4, 2), padding_mode="reflection"),
    Case("grid_sample", normal(1, 2, 3, 4), uniform(-1.2, 1.2, 1, 3, 4, 2), "nearest", "reflection"),
    Case("grid_sample", normal(1, 2, 4, 4), uniform(-1.2, 1.2, 1, 3, 2, 2), "bicubic"),
    Case("grid_sample", normal(1, 2, 4, 3), uniform(-1.2, 1.2, 1, 3, 2, 2), "bicubic", "reflection", True),
    Case("grid_sample", normal(2, 2, 3, 4, 2), uniform(-1.2, 1.2, 2, 2, 1, 3, 3)),
    Case("grid_sample", normal(1, 2, 3, 1, 2), uniform(-1.2, 1.2, 1, 2, 1, 3, 3), padding_mode="border"),
    Case("affine_grid", normal(2, 2, 3), (2, 1, 3, 4)),
    Case("affine_grid", normal(1, 3, 4), (1, 1, 2, 1, 3), align_corners=True),
]
