"""Measurements against peers: ``python -m benchmarks.NAME`` prints a table and writes ``results/*.json``."""
