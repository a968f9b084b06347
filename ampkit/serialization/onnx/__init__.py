"""ampkit.onnx: trained models as ONNX files, which ONNX Runtime and other programs run without ampkit.

`export` writes one. `onnx_op` maps an op of one's own to ONNX nodes. Needs the extra `onnx`:
docs/decisions/0036-onnx-by-tracing.md.
"""

from .export import export
from .registry import onnx_op

__all__ = ["export", "onnx_op"]
