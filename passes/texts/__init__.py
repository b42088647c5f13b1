"""What passes have decided, as stable text.

Enters: texts of graphs and plans, for dumps and errors.
"""
