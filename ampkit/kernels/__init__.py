"""Faster kernels than the references of `ampkit.ops`: `shared/` is what every backend has in common, `cpu/` and `cuda/`
are its loops. Dispatch loads them; nothing else imports them.
"""
