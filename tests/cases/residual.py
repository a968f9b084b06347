from ampkit.testing import Case, normal

CASES = [
    Case("add_layer_norm", normal(3, 5), normal(3, 5), 5, normal(5), normal(5)),
    Case("add_layer_norm", normal(2, 3, 4), normal(2, 3, 4), (3, 4), normal(3, 4), eps=0.1),
    Case("add_layer_norm", normal(2, 6), normal(2, 6), (6,), dropout_p=1.0),
    Case("add_layer_norm", normal(0, 6), normal(0, 6), (6,), normal(6), normal(6)),
    Case("layer_norm_of_sum", normal(3, 5), normal(3, 5), 5, normal(5), normal(5)),
    Case("layer_norm_of_sum", normal(2, 6), normal(2, 6), (6,), normal(6), dropout_p=1.0),
    Case("layer_norm_of_sum", normal(4), normal(4), 4),
]
