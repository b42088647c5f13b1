"""Ranks that watch each other: who is silent, who is late, who calls another method."""
