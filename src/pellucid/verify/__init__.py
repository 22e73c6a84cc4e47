"""Run the laws on your own model: compare the engine with its definition, and check what must hold for any weights.

report = verify(model)
report.first      # the first tensor that differs from the reference, None if all agree
report.exit_code  # 0, or 1 if a law is broken
"""

from pellucid.verify.examine import ModelParts, verify
from pellucid.verify.report import TOLERANCE, Check, Difference, Report

__all__ = ["TOLERANCE", "Check", "Difference", "ModelParts", "Report", "verify"]
