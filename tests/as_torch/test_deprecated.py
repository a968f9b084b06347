"""Functions that PyTorch has deprecated: the answers are those of PyTorch 2.13."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cpu


def test_old_factorizations_and_norms_answer_as_they_did(run_aliased):
    code = """
import torch
x = torch.arange(6.0).view(3, 2) + torch.eye(3, 2)
u, s, v = torch.svd(x)
print([round(n, 3) for n in s.tolist()], bool(torch.allclose(u * s @ v.t(), x, atol=1e-5)), tuple(v.shape))
print(*(tuple(m.shape) for m in torch.svd(x, some=False)), *(m.sum().item() for m in torch.svd(x, True, False)[::2]))
q, r = torch.qr(x)
print(bool(torch.allclose(q @ r, x, atol=1e-5)), tuple(q.shape), r[1, 0].item())
a = x.t() @ x
lower = torch.cholesky(a)
print(bool(torch.allclose(lower @ lower.t(), a, atol=1e-4)), torch.equal(torch.cholesky(a, upper=True), lower.t()))
print([len(torch.lu(a, get_infos=more)) for more in (False, True)], torch.lu(a)[1].tolist())
print([round(n, 4) for n in torch.frobenius_norm(x, 1).tolist()], torch.frobenius_norm(x, [0, 1], True).shape)
print(round(torch.nuclear_norm(x).item(), 4), torch.nuclear_norm(x, True).shape)
print([round(torch.igamma(*map(torch.tensor, (2.0, 3.0))).item(), 4), round(torch.mvlgamma(a, 2)[0, 0].item(), 3)])
"""
    assert run_aliased(code) == [
        "[7.896, 0.811] True (2, 2)",
        "(3, 3) (2,) (2, 2) 0.0 0.0",
        "True (3, 2) 0.0",
        "True True",
        "[2, 3] [2, 2]",
        "[1.4142, 4.4721, 6.4031] (1, 1)",
        "8.7067 (1, 1)",
        "[0.8009, 83.739]",
    ]


def test_a_range_has_its_end_and_parts_have_given_lengths(run_aliased):
    code = """
import torch
for given in ((1, 4), (0, 1, 0.25), (3, 0, -1), (0, 1.1, 0.5)):
    found = torch.range(*given)
    print(found.tolist(), found.dtype)
print(torch.range(0, 3, dtype=torch.int64).tolist())
for given in ((3, 1), (0, 1, 0)):
    try:
        torch.range(*given)
    except (RuntimeError, ValueError) as error:
        print(error)
print([part.tolist() for part in torch.split_with_sizes(torch.arange(6).view(2, 3), [1, 2], dim=1)])
"""
    assert run_aliased(code) == [
        "[1.0, 2.0, 3.0, 4.0] torch.float32",
        "[0.0, 0.25, 0.5, 0.75, 1.0] torch.float32",
        "[3.0, 2.0, 1.0, 0.0] torch.float32",
        "[0.0, 0.5, 1.0] torch.float32",
        "[0, 1, 2, 3]",
        "range: needs a step from start towards end, got 3, 1 and step 1",
        "range: needs a step from start towards end, got 0, 1 and step 0",
        "[[[0], [3]], [[1, 2], [4, 5]]]",
    ]


def test_initializers_by_their_older_names_warn(run_aliased):
    code = """
import torch, warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    print(torch.nn.init.constant(torch.empty(2), 3.0).tolist(), [(w.category.__name__, str(w.message)) for w in seen])
"""
    said = "torch.nn.init.constant: deprecated, its name is constant_"
    assert run_aliased(code) == [f"[3.0, 3.0] {[('FutureWarning', said)]}"]
