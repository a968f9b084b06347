"""CPU kernels, under the family and file name of the op that each makes faster."""
