"""Scores: how often each row will be read, walked, counted in advance or looked ahead for."""
