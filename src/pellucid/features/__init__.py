"""Sparse features of a model: dictionaries of what its layers read and compute, and graphs of their effects."""
