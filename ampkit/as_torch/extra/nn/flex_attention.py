"""`torch.nn.attention.flex_attention`: can be imported, and says what to use instead."""

from ...refused import refused

__all__ = [
    "_DEFAULT_SPARSE_BLOCK_SIZE", "AuxRequest", "BlockMask", "create_block_mask", "create_mask", "flex_attention",
]  # fmt: skip

_DEFAULT_SPARSE_BLOCK_SIZE = 128
_SPACE, _CURE = "torch.nn.attention.flex_attention", "F.scaled_dot_product_attention with attn_mask"
AuxRequest, BlockMask = refused(f"{_SPACE}.AuxRequest", _CURE), refused(f"{_SPACE}.BlockMask", _CURE)
create_block_mask, create_mask = refused(f"{_SPACE}.create_block_mask", _CURE), refused(f"{_SPACE}.create_mask", _CURE)
flex_attention = refused(f"{_SPACE}.flex_attention", _CURE)
