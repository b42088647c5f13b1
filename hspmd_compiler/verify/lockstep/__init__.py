"""All ranks in one process and one thread: who waits for whom, and whether what meets belongs together.

Enters: what drives ranks in lockstep, and its reports.
"""
