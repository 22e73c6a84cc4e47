"""Where a text stands in the text that a run was trained on: verbatim passages, counts, continuations."""
