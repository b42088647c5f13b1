"""When a rank's instructions run: measured for a timeline, slowed to a pace.

Enters: the executor's requests, the clocks of all ranks.
"""
