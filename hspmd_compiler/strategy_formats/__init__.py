"""Strategies in the languages of published systems: each module reads one of them to an Expanded."""
