"""Two annotations of one tensor: the cheapest way from one to the other. No torch.

`ways.py` has the candidates, `price.py` their prices, and `resolve.py` takes the cheapest. Layouts of a graph
come in by `resolve_layouts.plan`.

Enters: candidates for a conversion, their prices, and their steps.
"""

from .resolve import Resolution, resolve
from .text import text_of
from .ways import Method

__all__ = ["Method", "Resolution", "resolve", "text_of"]
