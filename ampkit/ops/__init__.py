"""Operations: the names of `torch.nn.functional` and of `torch` that ampkit has, and Tensor's operators and methods.

A folder per family, a file per topic, its public names in its `__all__`. `tensor_methods.py` has the table of Tensor's
operators and methods, `traced_methods.py` the meaning of NumPy's functions in double backward,
`batching` how ops run under `vmap`.
"""

from types import FunctionType as _FunctionType
from types import ModuleType as _ModuleType

from ..core.torch_compat import accept_compat_args as _accept_compat_args
from . import argument_checks as _argument_checks
from . import batching as _batching
from . import tangents as _tangents
from . import tensor_methods, traced_methods
from .creation.constants import *
from .creation.random import *
from .creation.ranges import *
from .indexing.gather_scatter import *
from .indexing.getitem import *
from .indexing.index_select import *
from .indexing.scatter_reduce import *
from .indexing.search import *
from .linalg import quantized_linear as _quantized_linear  # registers the kernels of `linear` by recipe
from .linalg.decompositions import *
from .linalg.distances import *
from .linalg.einsum import *
from .linalg.factors import *
from .linalg.lu import *
from .linalg.matmul import *
from .linalg.matrix_powers import *
from .linalg.solvers import *
from .linalg.tensor_products import *
from .loss.bce import *
from .loss.ctc import *
from .loss.linear_cross_entropy import *
from .loss.margin import *
from .loss.pairwise import *
from .loss.regression import *
from .nn.adaptive_pool import *
from .nn.attention import *
from .nn.batch_norm import *
from .nn.conv import *
from .nn.dropout import *
from .nn.embedding import *
from .nn.fused import *
from .nn.grid_sample import *
from .nn.interpolate import *
from .nn.layer_norm import *
from .nn.pool import *
from .nn.regions import *
from .nn.residual_norm import *
from .nn.rnn import *
from .nn.softmax import *
from .nn.unpool import *
from .pointwise.arithmetic import *
from .pointwise.comparison import *
from .pointwise.conversion import *
from .pointwise.error_function import *
from .pointwise.formats import *
from .pointwise.gamma_function import *
from .pointwise.incomplete_gamma import *
from .pointwise.logit_and_entropy import *
from .pointwise.piecewise_activations import *
from .pointwise.powers_and_logs import *
from .pointwise.rotary import *
from .pointwise.selection import *
from .pointwise.sign_and_rounding import *
from .pointwise.smooth_activations import *
from .pointwise.trigonometry import *
from .reduction.calculus import *
from .reduction.cumulative import *
from .reduction.histogram import *
from .reduction.norms import *
from .reduction.order_statistics import *
from .reduction.reductions import *
from .reduction.sorting import *
from .reduction.statistics import *
from .shape.grids import *
from .shape.join_split import *
from .shape.padding import *
from .shape.repeat_and_flip import *
from .shape.strided import *
from .shape.triangular import *
from .shape.view import *
from .sparse.creation import *
from .tensor_info import *

__all__ = [name for name, value in globals().items() if not name.startswith("_") and not isinstance(value, _ModuleType)]

for _name in __all__:  # ops check their arguments and accept PyTorch's aliases themselves; plain functions here
    if isinstance(globals()[_name], _FunctionType):
        globals()[_name] = _accept_compat_args(_argument_checks.checked(globals()[_name]))

tensor_methods.add_tensor_methods(globals())
_batching.give_rules()
_tangents.give_rules()
