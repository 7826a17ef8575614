"""`kit doctor`: what of this machine stands in the way of runs and builds, and what mends it.

facts.py reads, checks.py judges: the judgement is pure, and a check more is a function and a line in its table.
"""
