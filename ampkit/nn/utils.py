"""`nn.utils`: gradient clipping under the name that PyTorch scripts use; it lives in `optim`."""

from ..optim.clip import clip_grad_norm_, clip_grad_value_

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
