"""The report of a run: report.html, a single file to read or to send."""

from pellucid.report.finalize import finalize as finalize
from pellucid.report.page import write_page as write_page
