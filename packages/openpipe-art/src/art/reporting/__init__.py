"""What a run shows on the terminal and leaves in its folder.

:class:`RunReport` does both for any program; :mod:`art.reporting.run_folder` says which files there are and
what they mean, :mod:`art.reporting.events` what displays are told.
"""

from art.reporting.displays import Display, JsonDisplay, PlainDisplay, choose_display
from art.reporting.folder_claim import check_new_folder
from art.reporting.output import DisplayError
from art.reporting.resume import RunFinishedError, read_resumable
from art.reporting.run_end import WINDOW
from art.reporting.run_report import Phase, ReportError, RunReport
from art.reporting.run_state import RunState, read_state, state_lines
from art.reporting.run_writer import RunFolderError
from art.reporting.trajectory_lines import Executor

__all__ = [
    "WINDOW",
    "Display",
    "DisplayError",
    "Executor",
    "JsonDisplay",
    "Phase",
    "PlainDisplay",
    "ReportError",
    "RunFinishedError",
    "RunFolderError",
    "RunReport",
    "RunState",
    "check_new_folder",
    "choose_display",
    "read_resumable",
    "read_state",
    "state_lines",
]
