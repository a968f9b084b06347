from ampkit.testing import Case, normal

CASES = [
    Case("linear_gelu_linear", normal(4, 3), normal(5, 3), normal(5), normal(2, 5), normal(2)),
    Case("linear_gelu_linear", normal(2, 2, 3), normal(4, 3), normal(4), normal(3, 4), normal(3), approximate="tanh"),
    Case("linear_gelu_linear", normal(2, 3), normal(4, 3), None, normal(1, 4), approximate="tanh"),
    Case("linear_gelu_linear", normal(3), normal(4, 3), normal(4), normal(2, 4)),
    Case("linear_gelu_linear", normal(0, 3), normal(4, 3), normal(4), normal(2, 4), normal(2)),
]
