"""A compiled step, instruction by instruction: its shapes, seconds, traffic and memory.

Enters: what is worked out from rank programs for `estimate`. Models of devices and links stand above.
"""
