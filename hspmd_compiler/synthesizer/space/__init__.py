"""What a search of strategies may choose: ways of rows, moves of values, cuts of parameters, and their work.

Enters: a LogicalGraph. Leaves: a SearchSpace, which knows no machine.
"""
