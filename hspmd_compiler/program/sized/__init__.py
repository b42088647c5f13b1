"""Programs whose sizes are values: numbers that follow a micro-batch's tokens and samples, chosen per step.

Enters: what a size is, and what turns a program of sizes and a step's choice into numbers.
"""
