"""All rules of the package, registered by importing this."""

from __future__ import annotations

from .rules import RULES, rule_for

__all__ = ["RULES", "rule_for"]
