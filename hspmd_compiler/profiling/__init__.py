"""This machine measured through our own runtime, as a calibrated ClusterSpec.

Enters: layers compiled as any model is, the runtime's transport, what is known of the machine.
"""
