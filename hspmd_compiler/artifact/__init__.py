"""Rank programs: what they are, and the one executor that walks them."""
