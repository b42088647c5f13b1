"""Runs rank programs: one process per rank, torch.distributed between them."""
