"""Measurements side by side: each module is one command, `python -m benchmarks.NAME`, and prints a table of ratios."""
