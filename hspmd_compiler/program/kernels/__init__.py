"""The local operators that a program may call, by name.

Enters: functions of a rank's own tensors, each with its line in the table of `kernels.py`.
"""
