"""What libraries of probability do with `torch.distributions` and with sparse tensors: subclass, mix in, register."""

from __future__ import annotations

PROGRAM = """
import torch
from torch.distributions import constraints, kl_divergence, register_kl, transform_to
from torch.distributions.constraints import __all__ as names
from torch.distributions.kl import register_kl as same
from torch.distributions.utils import (
    _standard_normal, _sum_rightmost, broadcast_all, clamp_probs, lazy_property, logits_to_probs, probs_to_logits,
    tril_matrix_to_vec, vec_to_tril_matrix,
)
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli
from torch.distributions.transforms import Transform
from torch._jit_internal import _copy_to_script_wrapper
from torch.serialization import MAP_LOCATION

class Mixin:
    def twice(self):
        return self.rsample() * 2

class Mine(torch.distributions.Gamma, Mixin):
    def __init__(self, mean):
        super().__init__(mean * 2, torch.full_like(mean, 2.0))

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(Mine, _instance)
        return super().expand(batch_shape, _instance=new)

made = Mine(torch.tensor([1.0, 3.0]))
print(made.mean.tolist(), *made.expand((4, 2)).batch_shape, *made.twice().shape, type(made.expand((4, 2))).__name__)
made._validate_sample(torch.ones(2))
try:
    made._validate_sample(-torch.ones(2))
except ValueError as error:
    print(error)

class Ordered(constraints.Constraint):
    event_dim = 1
    def check(self, value):
        return (value[..., 1:] > value[..., :-1]).all(-1)

class SoftlyPositive(type(constraints.positive)):
    def __init__(self):
        super().__init__(lower_bound=0.0)

class Rising(Transform):
    domain, codomain, bijective = constraints.real_vector, Ordered(), True
    def _call(self, x):
        return torch.cat([x[..., :1], x[..., 1:].exp()], -1).cumsum(-1)

transform_to.register(SoftlyPositive, lambda c: torch.distributions.SoftplusTransform())
transform_to.register(Ordered, lambda c: Rising())
rising = transform_to(Ordered())(torch.randn(3))
print(transform_to(SoftlyPositive())(torch.tensor(0.0)).item() > 0, Ordered().check(rising).item())
register_kl(Mine, Mine)(lambda p, q: torch.zeros(()))
print(kl_divergence(made, made).item(), same is register_kl, "positive" in names)
print(vec_to_tril_matrix(torch.arange(6.0)).tolist(), tril_matrix_to_vec(torch.ones(3, 3)).shape[0])
print(MAP_LOCATION is not None)
print(torch.distributions.constraints._CorrCholesky.__name__, _copy_to_script_wrapper(len) is len)

class Lazy:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError
print(torch.is_tensor(Lazy()))
adjacency = torch.sparse.FloatTensor(torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, 2.0]), torch.Size([2, 2]))
print(torch.spmm(adjacency, torch.ones(2, 1)).tolist(), adjacency.layout == torch.sparse_coo, adjacency.is_sparse)
print(torch.mm(adjacency, torch.ones(2, 1), out=torch.empty(0)).tolist())
"""


def test_libraries_subclass_and_register(run_aliased):
    assert run_aliased(PROGRAM) == [
        "[1.0, 3.0] 4 2 2 Mine",
        "Mine: needs values from 0, got others",
        "True True",
        "0.0 True True",
        "[[0.0, 0.0, 0.0], [1.0, 2.0, 0.0], [3.0, 4.0, 5.0]] 6",
        "True",
        "_CorrCholesky True",
        "False",
        "[[1.0], [2.0]] True True",
        "[[1.0], [2.0]]",
    ]
