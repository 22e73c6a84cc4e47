"""Convert models of other projects: their configurations and tensors to Pellucid's and back."""

from pellucid.hub.families import FAMILIES, FamilyError, architecture_of, config_of, to_ours, to_theirs

__all__ = ["FAMILIES", "FamilyError", "architecture_of", "config_of", "to_ours", "to_theirs"]
