"""The `hspmd` command: one module per sub-command."""
