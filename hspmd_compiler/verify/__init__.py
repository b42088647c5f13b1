"""Proof that all rank programs fit together and compute what one device computes.

Enters: proofs, and the references that they compare with. Imports every room below.
"""
