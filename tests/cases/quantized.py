from ampkit.ops.quantized.codes import QParams
from ampkit.testing import Case, integers, normal

GIVEN = QParams(0.0002, 100)  # scales and biases are integers: int8 is for inference, and has no gradients

CASES = [
    Case("quantize_per_tensor", normal(3, 5), qparams=QParams(0.03, 120)),
    Case("quantize_per_tensor", normal(2, 3, 4, 4), qparams=QParams(0.05, 0, True)),
    Case("linear_int8", integers(0, 256, 4, 6), integers(-127, 128, 5, 6), integers(1, 4, 5), input_qparams=GIVEN),
    Case(
        "linear_int8", integers(0, 256, 2, 4, 6), integers(-127, 128, 5, 6), integers(1, 4, 5), integers(-3, 4, 5),
        input_qparams=GIVEN, activation="relu",
    ),
    Case(
        "conv2d_int8",
        integers(0, 256, 2, 4, 5, 5), integers(-127, 128, 6, 2, 3, 3), integers(1, 4, 6), integers(-3, 4, 6),
        stride=2, padding=1, groups=2, input_qparams=GIVEN, activation="gelu",
    ),
]  # fmt: skip
