"""What a run shows on the terminal and leaves in its folder.

:mod:`art.reporting.run_folder` says which files there are and what they mean.
"""
