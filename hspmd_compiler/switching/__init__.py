"""Plans of switches: from the programs of two strategies to who sends which elements of state to whom.

Enters: what finds classes of elements and divides their sending. Carrying a plan out is the runtime's.
"""
