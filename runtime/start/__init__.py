"""Ranks find each other and agree on what they run, before the first step.

Enters: processes, the rendezvous (torchrun's environment, gloo or NCCL), the roll call.
"""
