"""Names of `torch.func` that ampkit.func lacks."""

from __future__ import annotations

from .... import nn
from ...refused import refused

__all__ = ["rearrange", "replace_all_batch_norm_modules_"]

rearrange = refused("torch.func.rearrange", "einops.rearrange, or `permute` and `reshape`")


def replace_all_batch_norm_modules_(root: nn.Module) -> nn.Module:
    """Take the running statistics from all BatchNorm layers of a module, which `vmap` could not change. -> `root`."""
    for part in root.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm):
            part.running_mean = part.running_var = part.num_batches_tracked = None
            part.track_running_stats = False
    return root
