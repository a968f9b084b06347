"""What is said of the dtypes of a training before its first step."""

import pytest

import ampkit
from ampkit import nn, optim
from ampkit.debug import precisions


def model(dtype=ampkit.float32):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype=dtype)


def test_a_model_in_float32_is_its_own_master():
    net = model()
    with ampkit.autocast(net[0].weight.device.type, dtype=ampkit.bfloat16):
        found = precisions(net, optim.AdamW(net.parameters(), state_dtype="int8"))
    assert found.named() == {
        "weights": "float32",
        "masters": "the weights themselves",
        "moments": "exp_avg, exp_avg_sq in int8 with a float32 scale per 256, rounded stochastically",
        "gradients": "float32",
        "activations": 'bfloat16 where the policy says low, Policy("bfloat16")',
        "wire": "none, one process",
    }
    assert str(found).splitlines() == found.lines() and str(found).startswith("weights     float32\n")


@pytest.mark.parametrize("dtype", [ampkit.bfloat16, ampkit.float16], ids=str)
def test_16_bit_weights_have_float32_masters_and_moments_and_no_warning(dtype):
    net = model(dtype)
    found = precisions(net, optim.Adam(net.parameters(), amsgrad=True))
    assert (found.weights, found.masters, found.gradients) == (str(dtype).partition(".")[2], "float32", "float32")
    assert found.moments == "exp_avg, exp_avg_sq, max_exp_avg_sq in float32" and not found.warning


def test_16_bit_weights_without_masters_are_warned_of():
    net = model(ampkit.bfloat16)
    assert precisions(net).warning.startswith("58 trained weights are in bfloat16 and have no float32 master weights:")
    assert "an optimizer of ampkit.optim keeps them" in precisions(net).warning
    found = precisions(net, optim.SGD(net.parameters(), stochastic_rounding=True))
    assert found.masters == "none, bfloat16 weights are updated in place" and found.moments == "none"
    assert "stochastic_rounding=False keeps them" in found.warning and "warning" in found.named()
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    assert not precisions(net).warning


def test_several_dtypes_are_counted():
    net = model()
    net[0].to(dtype=ampkit.bfloat16)
    groups = [{"params": net[0].parameters(), "state_dtype": "bfloat16"}, {"params": net[2].parameters()}]
    found = precisions(net, optim.SGD(groups, momentum=0.9))
    assert found.weights == "bfloat16 (40 elements), float32 (18 elements)"
    assert found.masters == "float32 (40 elements), the weights themselves (18 elements)"
    assert "momentum_buffer in bfloat16, rounded stochastically" in found.moments and "in float32" in found.moments


def test_the_wire_is_what_ranks_send():
    assert precisions(model(), wire_dtype="bfloat16").wire == "bfloat16"
    assert precisions(model().double()).activations == "float64, without autocast"
