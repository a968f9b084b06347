"""`torch.version`: of PyTorch, whose names the alias has."""

from ...base.missing_names import PYTORCH_VERSION

__all__ = ["__version__", "cuda", "debug", "git_version", "hip", "xpu"]

__version__ = PYTORCH_VERSION
cuda = hip = xpu = None
debug = False
git_version = ""
