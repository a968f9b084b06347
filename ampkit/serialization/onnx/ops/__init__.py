"""The mappings of ops to ONNX nodes, in files named like the families of `ampkit/ops/`."""

from . import (
    attention,
    comparison,
    conv,
    conversion,
    indexing,
    linalg,
    norms,
    piecewise,
    pointwise,
    pool,
    reduction,
    resize,
    rnn,
    selection,
    shape,
    smooth,
    softmax,
)
