"""Reports of runs: one page for a browser, figures for a paper."""

from personafl.report.data import report_data
from personafl.report.page import page
from personafl.report.runs import Reported, find_runs

__all__ = ["Reported", "find_runs", "page", "report_data"]
