"""Evaluation and exact inference."""
