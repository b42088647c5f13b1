"""What a rank does about messages beside sending and waiting for them.

Enters: what follows from the order of a rank's SENDs and RECVs.
"""
