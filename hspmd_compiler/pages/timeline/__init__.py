"""The parts of the page that draws timelines: what it says, what it draws, and the script that draws.

Enters: values for the page and their markup; scripts and styles in `assets`. Imports `cost_models` and below.
"""
