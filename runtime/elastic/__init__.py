"""Runs that survive the loss of ranks: a launcher that restarts nobody, and ranks that take orders.

Enters: a job that every rank runs, and a callable that chooses the program for the devices that are left.
"""
