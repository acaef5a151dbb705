"""Estimates before a run: memory and disk counted, seconds from a few real steps, and what they choose.

The choices are the mode, the tiers and the plan of a run. Steps run on copies of model and optimizer.
"""
