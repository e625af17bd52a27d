"""The report of a run: one HTML file for who was not there, and small tables for notebooks."""

from op_tools.report.page import WrittenReport, first_divergence, headline, html_of, write_report

__all__ = ["WrittenReport", "first_divergence", "headline", "html_of", "write_report"]
