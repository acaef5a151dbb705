"""Measurements, a folder per question; each entry point prints a table and writes ``results/NAME.jsonl``.

``python -m benchmarks.all`` runs them all; ``benchmarks/README.md`` says which command measures what.
"""
