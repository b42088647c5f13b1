"""What `hspmd run` is told and tells: its flags by subject, and the view of its steps.

Enters: parsed arguments, and records of rank 0.
"""
