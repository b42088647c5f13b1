"""Published measurements of training steps, and what our models and others' say of them.

Enters: what reads those files and prices them. Nothing of the product imports it.
"""
