"""What the kernels of both backends share: functions of elements (functions.h), terms of reductions (reductions.h) and
rules of optimizers (optimizers.h), and the registrations of the ops that they serve.
"""
