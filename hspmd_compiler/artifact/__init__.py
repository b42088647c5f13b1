"""Rank programs as data: values, files, checks, and the executor that walks them."""
