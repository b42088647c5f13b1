"""The planner of communication: the cheapest way of a tensor from who has it to who needs it. No torch.

sides and cells say who holds and who needs what; demand, which addends; direct, in_turn, reduction and relay
are the ways to move it, ways lists and prices them, resolve chooses; steps writes a plan out.
"""

from .resolution import Resolution
from .resolve import resolve
from .text import text_of
from .ways import Method

__all__ = ["Method", "Resolution", "resolve", "text_of"]
