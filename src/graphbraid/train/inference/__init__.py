"""Evaluation on sampled neighbourhoods and exact inference."""
