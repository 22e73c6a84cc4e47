"""The laws, run on a user's own model: the engine against the definition, and what must hold whatever the weights.

report = verify(model)
report.first      # the first tensor that is not the reference's, None where all are
report.exit_code  # 0, or 1 where a law is broken
"""

from pellucid.verify.examine import ModelParts, verify
from pellucid.verify.report import TOLERANCE, Check, Difference, Report

__all__ = ["TOLERANCE", "Check", "Difference", "ModelParts", "Report", "verify"]
