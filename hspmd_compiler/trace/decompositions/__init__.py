"""Operators written out: as plainer ones that have rules, as draws by position, as cuts along dims.

Enters: what replaces operators of a traced step by others that compute the same.
"""
