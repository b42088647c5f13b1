"""From a traced model and machines to a strategy: devices in groups, programs realised, all priced in full.

Enters: a LogicalGraph and a ClusterSpec. Leaves: a Plan. The only part of the room that compiles.
"""
