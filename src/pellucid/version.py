"""The version, which any room may read without importing the package's public names."""

__version__ = "0.2.0"
