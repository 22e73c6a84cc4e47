"""Models of other projects: their configuration and their tensors, in our words and back."""

from pellucid.hub.families import FAMILIES, FamilyError, architecture_of, config_of, to_ours, to_theirs

__all__ = ["FAMILIES", "FamilyError", "architecture_of", "config_of", "to_ours", "to_theirs"]
