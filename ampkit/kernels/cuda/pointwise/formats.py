"""CUDA kernels of formats below 16 bits (formats.cu)."""

from ampkit.backends.cuda.launch import formats
from ampkit.kernels.shared.pointwise import register_formats

register_formats("cuda", formats, formats.decodes)
