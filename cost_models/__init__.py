"""Prices of a compiled strategy on a described cluster."""
