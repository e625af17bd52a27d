"""The report of a run: one HTML file for who was not there, and small tables for notebooks."""

from op_tools.report.page import Written, write_report
from op_tools.report.sentence import first_divergence, headline
from op_tools.report.static import html_of

__all__ = ["Written", "first_divergence", "headline", "html_of", "write_report"]
