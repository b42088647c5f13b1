"""Elastic runs over several hosts: launchers that meet, follow the first of them, and take over from it.

Enters: what launchers say to each other, and how ranks of another host stand in for own ones.
"""
