"""The network alone: tokens in, logits out."""

from pellucid.model.cache import Cache
from pellucid.model.tap import OFF, Recorder, Tap
from pellucid.model.transformer import Backbone, Transformer

__all__ = ["OFF", "Backbone", "Cache", "Recorder", "Tap", "Transformer"]
