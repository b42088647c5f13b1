"""The directory of an artifact, written and read: data only, checked before it is believed.

Enters: the manifest, the store, which reads and checks hashes, and how values of a program stand in files.
Imports `program` and below.
"""
