"""The `hspmd` command: one module per sub-command.

Enters: flags, and how results are shown; what is computed belongs to the rooms below.
"""
