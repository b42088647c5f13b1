"""Annotated pipelines become a Program: segments by class, tables by rank, instructions by schedule.

Enters: what writes a Program's values; decisions belong to the passes before.
"""
