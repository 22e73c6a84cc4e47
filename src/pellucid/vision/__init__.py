"""Images as tokens: patches through the same blocks, a class read out; trained, saved and scored like text models."""
