"""One pipeline for every kind of run: its folder, checkpoints, trainer, metrics, reporter and signals."""
