"""Predictors of the next token that are no transformers: counts, fixed contexts, recurrence. Also the baselines."""
