"""Views of a Profile: tables, an HTML page, a trace file."""

from ipu_core.report.html import to_html, write_html
from ipu_core.report.operations import by_operation
from ipu_core.report.text import compare, show, tables
from ipu_core.report.trace import to_chrome, write_chrome

__all__ = ["by_operation", "compare", "show", "tables", "to_chrome", "to_html", "write_chrome", "write_html"]
