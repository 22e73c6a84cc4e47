"""Run the laws on your own model: compare the engine with its reference, and check what must hold for any weights.

report = verify(model)
report.first      # the first tensor that differs from the reference, None if all agree
report.exit_code  # 0, or 1 if a law is broken

What compares, with the reference, is imported when it is first used: opening a model needs the report's type alone.
"""

from typing import TYPE_CHECKING, Any

from pellucid.verify.report import TOLERANCE, Check, Difference, Report

if TYPE_CHECKING:
    from pellucid.verify.examine import verify as verify

__all__ = ["TOLERANCE", "Check", "Difference", "Report", "verify"]


def __getattr__(name: str) -> Any:
    if name == "verify":
        from pellucid.verify.examine import verify

        return verify
    raise AttributeError(f"module 'pellucid.verify' has no attribute {name!r}")
