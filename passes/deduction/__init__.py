"""Every value gets a layout: rules are asked row by row, conversions are inserted where layouts differ.

Enters: what decides layouts of one pipeline's rows.
"""
