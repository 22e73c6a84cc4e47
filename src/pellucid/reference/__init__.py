"""The definition of everything, equation by equation, in NumPy and float64."""
