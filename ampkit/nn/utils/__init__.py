"""`nn.utils`: gradient clipping under the name that PyTorch scripts use, which lives in `optim`, and `rnn`."""

from ...optim.clip import clip_grad_norm_, clip_grad_value_
from . import rnn

__all__ = ["clip_grad_norm_", "clip_grad_value_", "rnn"]
