"""ampkit.onnx: trained models as ONNX files, which ONNX Runtime and other programs run without ampkit.

`export` writes one, by the extra `onnx`: docs/decisions/0036-onnx-by-tracing.md. `onnx_op` maps an op of one's own to
nodes. `is_in_onnx_export` is PyTorch's.
"""

from .export import export
from .registry import onnx_op
from .trace import is_in_onnx_export

__all__ = ["export", "is_in_onnx_export", "onnx_op"]
