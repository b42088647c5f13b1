"""Passes: from a logical graph and a strategy to rows that every rank can run.

Enters: one module for each pass, with its line in `pipeline.py`, and what passes are made of. Imports
`trace`, `strategy`, `artifact` and below; no `cost_models`: a pass that needs a price takes a CostModel.
"""
