"""Proof that all rank programs fit together and compute what one device computes."""
