"""Estimates before a run: memory and disk are counted, seconds measured by a few real steps.

They choose the mode, the tiers and the plan of a run. Steps run on copies of model and optimizer.
"""
