"""`art demo`: a small language model learns to answer "maybe".

The parts are ordinary programs over ART's public interface, to be read and copied: :mod:`art.demo.model`
fetches the model, :mod:`art.demo.task` is the task, :mod:`art.demo.yes_no_maybe.train` the program, and
:class:`art.reporting.RunReport` what it prints and keeps.
"""
