"""The report of a run: report.html, one file to look at or to send."""

from pellucid.report.finalize import finalize as finalize
from pellucid.report.page import write_page as write_page
