"""`ampkit.nn.functional` is `ampkit.ops`, the same module, under the name that PyTorch scripts import."""

import sys

from .. import ops

sys.modules[__name__] = ops
