"""A strategy found by search: from a model's graph and a list of machines to layouts, with their price.

Enters: a LogicalGraph and a SearchMachine. Leaves: a FoundProgram. Reads rules and price models.
"""
