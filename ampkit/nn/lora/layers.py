"""Linear and Conv2d with a low-rank product beside their weight."""

from __future__ import annotations

import math
from typing import Any

from ampkit import backends
from ampkit.base import dtypes
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.policy import delayed
from ampkit.core.tensor import Tensor

from .. import init
from ..module import Module
from ..modules.conv import Conv2d
from ..modules.dropout import Dropout
from ..modules.linear import Linear
from .config import LoraConfig


class _Adapted(Module):
    # weight and bias under their names in the layer that it was; lora_A, lora_B and lora_dropout besides.
    scaling: float
    weight: Any
    lora_A: Module  # noqa: N815 - PEFT's names, which are those of its files
    lora_B: Module  # noqa: N815

    def _adapt(self, config: LoraConfig, a: Module, b: Module) -> None:
        self.lora_dropout, self.scaling = Dropout(config.lora_dropout), config.scaling
        self.lora_A, self.lora_B = a, b
        self.reset_adapter()

    def reset_adapter(self) -> None:
        """Draw lora_A anew, uniform as the layer's own weight, and make lora_B, and so the product, zero."""
        init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        init.zeros_(self.lora_B.weight)

    def _with_adapter(self, output: Tensor, input: Tensor) -> Tensor:
        x = self.lora_dropout(input.to(self.lora_A.weight.dtype))
        return output + (self.lora_B(self.lora_A(x)) * self.scaling).to(output.dtype)

    def merged_weight(self) -> Any:
        """weight + scaling times the product, an array in the dtype of weight: computed in float64, rounded once."""
        a, b = (_wide(each.weight) for each in (self.lora_A, self.lora_B))
        product = (b.reshape(len(b), -1) @ a.reshape(len(a), -1)).reshape(self.weight.shape)
        merged = _wide(self.weight) + product * self.scaling
        return backends.backend_of(self.weight.array).cast(merged, self.weight.array.dtype)

    def merge(self) -> None:
        """Put the product into weight, and become the layer that it was."""
        with no_grad():
            self.weight._write(Tensor(self.merged_weight()))
        delayed.follow_weight(self.weight)
        for name in ("lora_A", "lora_B", "lora_dropout"):
            delattr(self, name)
        del self.scaling
        layer: Any = self
        layer.__class__ = next(kind for kind, adapted in ADAPTED.items() if adapted is type(self))


def _wide(tensor: Tensor) -> Any:
    array = tensor.detach().array
    return backends.backend_of(array).cast(array, dtypes.float64)


class LoraLinear(_Adapted, Linear):
    """x W^T + bias + scaling (dropout(x) A^T) B^T: a Linear whose weight stays, with A [r, in] and B [out, r] trained.

    A is lora_A.weight, B lora_B.weight, in float32 (float64 for a float64 weight). B begins as zeros, and so the layer
    as it was. Made of a Linear by `inject_adapter_in_model`. Hu et al. 2021, arXiv:2106.09685, eq. 3.
    """

    def adapt(self, config: LoraConfig) -> None:
        """Add the two matrices."""
        made = _made_as(self.weight)
        a = Linear(self.in_features, config.r, bias=False, **made)
        self._adapt(config, a, Linear(config.r, self.out_features, bias=False, **made))

    def forward(self, input: Tensor) -> Tensor:
        return self._with_adapter(Linear.forward(self, input), input)


class LoraConv2d(_Adapted, Conv2d):
    """A Conv2d whose weight stays, with a convolution to r channels and one of 1 x 1 from them, both trained.

    lora_A.weight [r, in, *kernel_size] has the layer's stride, padding and dilation, lora_B.weight is [out, r, 1, 1].
    """

    def adapt(self, config: LoraConfig) -> None:
        """Add the two convolutions."""
        made, own = _made_as(self.weight), (self.kernel_size, self.stride, self.padding, self.dilation)
        a = Conv2d(self.in_channels, config.r, *own, bias=False, padding_mode=self.padding_mode, **made)
        self._adapt(config, a, Conv2d(config.r, self.out_channels, 1, bias=False, **made))

    def forward(self, input: Tensor) -> Tensor:
        return self._with_adapter(Conv2d.forward(self, input), input)


def _made_as(weight: Tensor) -> dict[str, Any]:
    return {"device": weight.device, "dtype": dtypes.accumulator(weight.array.dtype)}


ADAPTED: dict[type[Module], Any] = {Linear: LoraLinear, Conv2d: LoraConv2d}
