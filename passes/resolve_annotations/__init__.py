"""Two annotations of one tensor: the cheapest way from one to the other. No torch.

sides and cells say who holds and who needs what; demand, which addends; direct, reduction and relay are
the ways to move it, resolve chooses by price; steps writes a plan out for the executor.
"""

from .resolution import Resolution
from .resolve import resolve
from .text import text_of
from .ways import Method

__all__ = ["Method", "Resolution", "resolve", "text_of"]
