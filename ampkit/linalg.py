"""The names of `torch.linalg`: `ampkit.linalg.norm`."""

from __future__ import annotations

from types import FunctionType as _FunctionType

from . import ops as _ops
from .core.tensor import Tensor as _Tensor
from .core.torch_compat import accept_compat_args as _accept_compat_args
from .ops import linalg_cholesky as cholesky
from .ops import linalg_cholesky_ex as cholesky_ex
from .ops import linalg_cond as cond
from .ops import linalg_eigh as eigh
from .ops import linalg_eigvalsh as eigvalsh
from .ops import linalg_inv as inv
from .ops import linalg_inv_ex as inv_ex
from .ops import linalg_lstsq as lstsq
from .ops import linalg_lu as lu
from .ops import linalg_lu_factor as lu_factor
from .ops import linalg_lu_factor_ex as lu_factor_ex
from .ops import linalg_lu_solve as lu_solve
from .ops import linalg_matrix_norm as matrix_norm
from .ops import linalg_matrix_rank as matrix_rank
from .ops import linalg_multi_dot as multi_dot
from .ops import linalg_norm as norm
from .ops import linalg_pinv as pinv
from .ops import linalg_qr as qr
from .ops import linalg_solve as solve
from .ops import linalg_solve_ex as solve_ex
from .ops import linalg_solve_triangular as solve_triangular
from .ops import linalg_svd as svd
from .ops import linalg_svdvals as svdvals
from .ops import linalg_tensorinv as tensorinv
from .ops import linalg_tensorsolve as tensorsolve
from .ops import linalg_vecdot as vecdot
from .ops import linalg_vector_norm as vector_norm
from .ops import matmul
from .ops.argument_checks import checked as _checked
from .ops.linalg.matrix_powers import batched_vander as _powers_of
from .ops.linalg.solvers import SlogdetResult as _SignedLog

__all__ = [
    "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "inv_ex", "lstsq",
    "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul", "matrix_exp", "matrix_norm", "matrix_power",
    "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet", "solve", "solve_ex", "solve_triangular", "svd",
    "svdvals", "tensorinv", "tensorsolve", "vander", "vecdot", "vector_norm",
]  # fmt: skip


# Functions whose arguments differ between torch.linalg and torch; A and N are PyTorch's names.


def det(A: _Tensor) -> _Tensor:  # noqa: N803
    """`ops.det`."""
    return _ops.det(A)


def slogdet(A: _Tensor) -> _SignedLog:  # noqa: N803
    """`ops.slogdet`."""
    return _ops.slogdet(A)


def matrix_exp(A: _Tensor) -> _Tensor:  # noqa: N803
    """`ops.matrix_exp`."""
    return _ops.matrix_exp(A)


def matrix_power(A: _Tensor, n: int) -> _Tensor:  # noqa: N803
    """`ops.matrix_power`."""
    return _ops.matrix_power(A, n)


def cross(input: _Tensor, other: _Tensor, *, dim: int = -1) -> _Tensor:
    """`ops.cross`, along the last axis."""
    return _ops.cross(input, other, dim)


def diagonal(A: _Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> _Tensor:  # noqa: N803
    """`ops.diagonal`, of the last two axes."""
    return _ops.diagonal(A, offset, dim1, dim2)


def vander(x: _Tensor, *, N: int | None = None) -> _Tensor:  # noqa: N803
    """`ops.vander` with increasing powers, batched: [..., n] -> [..., n, N], N = n by default; [] counts as [1].

    Raises ArgumentError for N below 0.
    """
    return _powers_of(x if x.ndim else _ops.reshape(x, 1), N, increasing=True)


for _name in __all__:
    if isinstance(globals()[_name], _FunctionType) and globals()[_name].__module__ == __name__:
        globals()[_name] = _accept_compat_args(_checked(globals()[_name]))
