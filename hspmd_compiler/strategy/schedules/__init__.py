"""In which order each stage of a pipeline runs its micro-batches, and what that takes over time.

Enters: an order of one stage, with its line in `ScheduleKind`; rules of all; texts, and what they take.
"""
