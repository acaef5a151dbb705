"""Measurements before a run begins: stage profiles, plans, and trials of core arrangements."""
