"""Conversions between Graph and what others hold graphs in: one module per partner, imported on use."""
