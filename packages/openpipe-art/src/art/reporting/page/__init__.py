"""The page that a run leaves: `report.html`, one file that shows everything and asks the network for nothing.

:mod:`art.reporting.run_folder` says what it is made from.
"""

from art.reporting.page.document import write_report
from art.reporting.page.load import PageError

__all__ = ["PageError", "write_report"]
