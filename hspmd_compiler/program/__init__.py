"""What a rank runs, as values, and the one executor that walks it: the needs of a training node.

Enters: instructions, segments, requests and what runs them. Imports `base` and `layout` only.
"""
