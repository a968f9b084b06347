"""Classes, functions and contexts of PyTorch that libraries derive from, call or decorate with."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cpu


def test_classes_that_ampkit_lacks_stand_in_annotations_as_bases_and_in_isinstance(run_aliased):
    code = """
import torch
from torch import SymFloat
class Mine(torch.autograd.NestedIOFunction):
    pass
def f(n: torch.SymInt | int) -> torch.torch.Tensor: ...
print(isinstance(3, (torch.SymInt, SymFloat)), isinstance(Mine, type), torch.nn.functional.torch is torch)
try:
    raise ValueError
except (torch.cuda.CudaError, ValueError):
    print("caught")
for use in (lambda: torch.SymInt(3), Mine, lambda: torch.func.rearrange(1, "a -> a")):
    try:
        use()
    except AttributeError as error:
        print(*str(error).splitlines())
"""
    assert run_aliased(code) == [
        "False True True",
        "caught",
        "ampkit has no torch.SymInt help: none: Python code runs directly",
        "ampkit has no torch.autograd.NestedIOFunction help: PyTorch's own successors, where ampkit has them",
        "ampkit has no torch.func.rearrange help: einops.rearrange, or `permute` and `reshape`",
    ]


def test_functorch_has_the_transforms_and_functions_of_modules(run_aliased):
    code = """
import warnings
import functorch, torch
from functorch import combine_state_for_ensemble, make_functional, make_functional_with_buffers
from torch import nn
warnings.simplefilter("ignore")
model, x = nn.Linear(2, 1), torch.tensor([[1.0, 2.0]])
f, params = make_functional(model)
loss = lambda params: f(params, x).sum()
print([g.tolist() for g in functorch.grad(loss)(params)], params[0] is not model.weight)
g, params, buffers = make_functional_with_buffers(nn.BatchNorm1d(2).eval(), disable_autograd_tracking=True)
print(torch.allclose(g(params, [b * 0 + 4 for b in buffers], x), (x - 4) / 2, atol=1e-4), params[0].requires_grad)
models = [nn.Linear(2, 1) for _ in range(3)]
h, params, buffers = combine_state_for_ensemble(models)
found = functorch.vmap(h, in_dims=(0, 0, None))(params, buffers, x)
print(torch.allclose(found, torch.stack([m(x) for m in models])), functorch.hessian(lambda x: x**3)(torch.tensor(2.0)))
norm = torch.func.replace_all_batch_norm_modules_(nn.Sequential(nn.BatchNorm2d(2)))[0]
print(norm.running_mean, norm.track_running_stats)
try:
    make_functional(nn.BatchNorm1d(2))
except RuntimeError as error:
    print(error)
warnings.simplefilter("error")
try:
    functorch.vmap(abs)
except FutureWarning as warning:
    print(warning)
"""
    assert run_aliased(code) == [
        "[[[1.0, 2.0]], [1.0]] True",
        "True False",
        "True tensor(12.)",
        "None False",
        "make_functional: needs a module without buffers; use make_functional_with_buffers",
        "`functorch.vmap` is deprecated. Please use `torch.vmap` instead",
    ]


def test_tensors_in_files_contexts_that_decorate_and_checks_of_tensors(run_aliased, tmp_path):
    code = f"""
import torch
from torch._guards import active_fake_mode
from torch.utils._contextlib import _DecoratorContextManager, context_decorator
path = {str(tmp_path / "numbers")!r}
x = torch.from_file(path, shared=True, size=4)
x[1:] = 3.0
print(torch.from_file(path, size=4).tolist(), torch.from_file(path, size=2, dtype=torch.int64).dtype)
class Region(_DecoratorContextManager):
    depth = 0
    def __enter__(self):
        Region.depth += 1
    def __exit__(self, *error):
        Region.depth -= 1
@Region()
def depth():
    return Region.depth
def depths():
    yield Region.depth
inside = context_decorator(Region, depths)
print(depth(), list(inside()), Region.depth, active_fake_mode(), torch.ones(2).is_inference())
torch._assert_async(torch.ones(1) > 0)
for use in (lambda: torch._assert_async(torch.zeros(1), "none"), lambda: torch.from_file(path, size=99)):
    try:
        use()
    except (RuntimeError, OSError) as error:
        print(type(error).__name__, str(error).partition(":")[0])
"""
    assert run_aliased(code) == [
        "[0.0, 3.0, 3.0, 3.0] torch.int64",
        "1 [1] 0 None False",
        "RuntimeError none",
        "FileError UntypedStorage",
    ]
