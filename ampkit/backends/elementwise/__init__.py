"""What the kernels of both backends share: functions of elements (functions.h), terms of reductions (reductions.h),
rules of optimizers (optimizers.h), the layout of broadcast operands, and in `kernels` the ops that they serve.
"""
