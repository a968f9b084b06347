"""`nn.lora`: low-rank adaptation. Frozen weights, and beside each chosen one a product of two small matrices."""

from .adapter_files import load_adapter, save_adapter
from .config import LoraConfig
from .inject import inject_adapter_in_model, merge_and_unload
from .layers import LoraConv2d, LoraLinear

__all__ = [
    "LoraConfig", "LoraConv2d", "LoraLinear", "inject_adapter_in_model", "load_adapter", "merge_and_unload",
    "save_adapter",
]  # fmt: skip
