"""The checks of the compiler, one module per subject.

Each pass takes specifications and what earlier passes settled, reports to a
:class:`~art_topology.passes.findings.Findings` and returns what it settled itself. A pass never reports what
follows from something already reported: where an earlier finding leaves a question open, the checks that need
its answer are left out.
"""
