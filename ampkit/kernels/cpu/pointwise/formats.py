"""CPU kernels of formats below 16 bits (formats.cpp)."""

from ampkit.backends.cpu import formats
from ampkit.kernels.shared.pointwise import register_formats

register_formats("cpu", formats, lambda codes, dtype, to: formats.decodes(to), formats.MIN_ELEMENTS)
