"""Views of a Profile: tables, an HTML page, a trace file."""

from ipu_core.report.html import to_html, write_html
from ipu_core.report.operations import by_layer, by_operation
from ipu_core.report.roofs import Roof, roofline, roofs_of_steps
from ipu_core.report.text import compare, show, tables
from ipu_core.report.trace import to_chrome, write_chrome

__all__ = [
    "Roof",
    "by_layer",
    "by_operation",
    "compare",
    "roofline",
    "roofs_of_steps",
    "show",
    "tables",
    "to_chrome",
    "to_html",
    "write_chrome",
    "write_html",
]
