"""What a run shows on the terminal and leaves in its folder.

:class:`RunReport` does both for any program; :mod:`art.reporting.run_folder` says which files there are and
what they mean, :mod:`art.reporting.events` what displays are told.
"""

from art.reporting.displays import Display, JsonDisplay, PlainDisplay, choose_display
from art.reporting.run_report import WINDOW, Executor, Phase, ReportError, RunReport
from art.reporting.run_writer import RunFinishedError, check_new_folder, read_resumable

__all__ = [
    "WINDOW",
    "Display",
    "Executor",
    "JsonDisplay",
    "Phase",
    "PlainDisplay",
    "ReportError",
    "RunFinishedError",
    "RunReport",
    "check_new_folder",
    "choose_display",
    "read_resumable",
]
