"""What the backends' elementwise kernels share: the functions (functions.h), the layout of broadcast operands, and in
`kernels` the ops that they serve.
"""
