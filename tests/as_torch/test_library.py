"""`torch.library`, and names of private modules that models of others import."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cpu


def test_an_operator_of_ones_own_has_a_name_and_the_gradient_that_is_registered(run_aliased):
    code = """
import torch

@torch.library.custom_op("mine::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() ** 2)

@square.register_fake
def shape(x):
    return torch.empty_like(x)

def setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)

def backward(ctx, grad):
    return 2 * ctx.saved_tensors[0] * grad

square.register_autograd(backward, setup_context=setup)
x = torch.tensor([1.0, 3.0], requires_grad=True)
torch.ops.mine.square(x=x).sum().backward()
print(x.grad.tolist(), shape(x).shape == x.shape)

plain = torch.library.custom_op("mine::twice", lambda x: 2 * x, mutates_args=())
y = torch.ones(1, requires_grad=True)
plain(y).backward()
print(y.grad.tolist(), hasattr(torch.ops.mine, "cube"))
torch.library.register_kernel("mine::twice", "cpu", lambda x: 3 * x)
print(torch.ops.mine.twice(torch.ones(1)).tolist())
"""
    assert run_aliased(code) == ["[2.0, 6.0] True", "[2.0] False", "[3.0]"]


def test_names_that_models_import_from_private_modules_are_there(run_aliased):
    code = """
import torch
from torch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.rpc.api import _require_initialized
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Partial
from torch.jit.annotations import List
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.init import _calculate_correct_fan, _calculate_fan_in_and_fan_out
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import _dict_flatten_with_keys

weight = torch.empty(4, 3, 5)
print(_calculate_fan_in_and_fan_out(weight), _calculate_correct_fan(weight, "fan_out"))
print((torch.FloatTensor | None) == (None | torch.FloatTensor))
print(isinstance(torch.nn.BatchNorm2d(2), _BatchNorm), isinstance(torch.nn.Conv1d(1, 1, 1), _ConvNd))
print(Shard(1).dim, Partial().reduce_op, _dict_flatten_with_keys({"a": 1}))
print(torch.nn.DataParallel(torch.nn.Linear(2, 1)).state_dict().keys())
print(isinstance(weight, DTensor), Replicate().is_replicate())
for use in (lambda: flex_attention(1), lambda: torch.cuda.CUDAGraph()):
    try:
        use()
    except AttributeError as error:
        print(str(error).splitlines()[1])
try:
    torch._assert(False, "no")
except AssertionError as error:
    print(error)
"""
    assert run_aliased(code) == [
        "(15, 20) 20",
        "True",
        "True True",
        "1 sum ([(MappingKey(key='a'), 1)], ['a'])",
        "odict_keys(['module.weight', 'module.bias'])",
        "False True",
        "help: F.scaled_dot_product_attention with attn_mask",
        "help: ampkit.compile records a whole step",
        "no",
    ]


def test_a_scan_combines_elements_one_after_the_other(run_aliased):
    code = """
import torch
from torch._higher_order_ops.associative_scan import associative_scan

x = torch.tensor([[1.0, 2.0, 3.0], [2.0, 0.5, 4.0]])
print(associative_scan(lambda a, b: a * b, x, 1).tolist())
print(associative_scan(lambda a, b: a + b, x, 0, reverse=True).tolist())
affine = lambda left, right: (left[0] * right[0], left[1] * right[0] + right[1])
print([t.tolist() for t in associative_scan(affine, (x[0], x[1]), 0, combine_mode="generic")])
print(torch.jit.annotate(int, 3), torch._dynamo.mark_static_address(x))
futures = [torch.jit.fork(torch.mul, x, n) for n in (1, 2)]
print(torch.jit.wait(futures[1]).sum().item(), [f.sum().item() for f in torch.futures.wait_all(futures)])
"""
    assert run_aliased(code) == [
        "[[1.0, 2.0, 6.0], [2.0, 1.0, 4.0]]", "[[3.0, 2.5, 7.0], [2.0, 0.5, 4.0]]",
        "[[1.0, 2.0, 6.0], [2.0, 4.5, 17.5]]", "3 None", "25.0 [12.5, 25.0]",
    ]  # fmt: skip


def test_gradcheck_has_pytorchs_arguments(run_aliased):
    code = """
import torch
from torch.autograd.gradcheck import GradcheckError

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        return grad

x = torch.ones(2, dtype=torch.float64, requires_grad=True)
print(torch.autograd.gradcheck(torch.exp, (x,), eps=1e-6, atol=1e-4, check_batched_grad=False, fast_mode=True))
print(torch.autograd.gradgradcheck(torch.exp, (x,), None, check_fwd_over_rev=True))
print(torch.autograd.gradcheck(Wrong.apply, (x,), raise_exception=False))
print(torch.autograd.gradcheck(Wrong.apply, (x,), raise_exception=False, atol=0.0, rtol=1.0))
for options in ({}, {"speed": 1}):
    try:
        torch.autograd.gradcheck(Wrong.apply, (x,), **options)
    except (GradcheckError, TypeError) as error:
        print(type(error).__name__)
try:
    torch.autograd.gradcheck(torch.exp, (x,), check_backward_ad=False)
except AssertionError as error:
    print(error)

class Forward(Wrong):
    @staticmethod
    def jvp(ctx, t):
        return t

forward = {"check_backward_ad": False, "check_forward_ad": True}
print(torch.autograd.gradcheck(Forward.apply, (x,), raise_exception=False, **forward))
print(torch.autograd.gradcheck(torch.exp, (x,), **forward))
"""
    assert run_aliased(code) == [
        "True", "True", "False", "True", "GradcheckError", "TypeError",
        "gradcheck: needs check_backward_ad or check_forward_ad, got neither", "False", "True",
    ]  # fmt: skip
