"""`ampkit.nn.functional` is `ampkit.ops`, the same module, under the name that PyTorch scripts import."""

import sys

from .. import ops
from ..ops import *  # noqa: F403  # the names that type checkers and editors see

sys.modules[__name__] = ops
