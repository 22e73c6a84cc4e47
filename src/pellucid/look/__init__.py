"""The web inspector: a model's whole computation on any prompt, in a browser on this machine, from `pellucid look`."""
