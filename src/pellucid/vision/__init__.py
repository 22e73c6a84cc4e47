"""Image classifiers: patches are the tokens of the same blocks. Runs are trained and saved as those of text models."""
