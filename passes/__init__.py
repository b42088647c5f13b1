"""Passes from an annotated strategy to rows that every rank can run."""
