"""Measurements, a folder per question; each entry point prints a table and writes ``results/NAME.jsonl``.

``benchmarks/README.md`` says which command measures what.
"""
