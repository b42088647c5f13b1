"""A rank's segments through compilers of others.

Enters: functions that give what `compile_segment` gives.
"""
