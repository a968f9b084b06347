"""pixel_shuffle, pixel_unshuffle, channel_shuffle. Every dtype passes through."""

from __future__ import annotations

from ampkit.base.errors import ShapeError
from ampkit.core.tensor import Tensor

from .view import permute, reshape

__all__ = ["channel_shuffle", "pixel_shuffle", "pixel_unshuffle"]


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Rearrange groups of r^2 channels to blocks of r x r pixels: [..., C r^2, H, W] -> [..., C, H r, W r].

    Raises ShapeError if r^2 does not divide the channels. Shi et al. 2016, arXiv:1609.05158, eq. 4.
    """
    r = upscale_factor
    lead, (channels, high, wide) = input.shape[:-3], _image_shape("pixel_shuffle", input)
    if r < 1 or channels % (r * r):
        raise ShapeError("pixel_shuffle", f"channels that {r} * {r} divides", f"{channels}")
    blocks = reshape(input, (*lead, channels // (r * r), r, r, high, wide))
    n = len(lead)
    blocks = permute(blocks, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return reshape(blocks, (*lead, channels // (r * r), high * r, wide * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Rearrange blocks of r x r pixels to groups of r^2 channels: [..., C, H r, W r] -> [..., C r^2, H, W].

    Raises ShapeError if r does not divide height and width.
    """
    r = downscale_factor
    lead, (channels, high, wide) = input.shape[:-3], _image_shape("pixel_unshuffle", input)
    if r < 1 or high % r or wide % r:
        raise ShapeError("pixel_unshuffle", f"a height and a width that {r} divides", f"{high} and {wide}")
    blocks = reshape(input, (*lead, channels, high // r, r, wide // r, r))
    n = len(lead)
    blocks = permute(blocks, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return reshape(blocks, (*lead, channels * r * r, high // r, wide // r))


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Interleave the channels of `groups` groups: [N, C, ...] -> [N, C, ...].

    Raises ShapeError if groups does not divide the channels. Zhang et al. 2017, arXiv:1707.01083, sec. 3.1.
    """
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        raise ShapeError("channel_shuffle", f"input [N, C, ...] with {groups} groups of channels", f"{input.shape}")
    batch, channels, *size = input.shape
    split = reshape(input, (batch, groups, channels // groups, *size))
    return reshape(permute(split, (0, 2, 1, *range(3, split.ndim))), input.shape)


def _image_shape(where: str, input: Tensor) -> tuple[int, ...]:
    if input.ndim < 3:
        raise ShapeError(where, "input [..., C, H, W]", f"shape {tuple(input.shape)}")
    return input.shape[-3:]
