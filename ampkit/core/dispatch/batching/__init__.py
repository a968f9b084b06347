"""Batched arrays: `vmap` runs a function once, over arrays whose first axis, that of the samples, ops do not see."""
