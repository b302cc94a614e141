"""The planner against published measurements: ``python -m accuracy`` writes ``docs/planner-accuracy.md``.

``rows/`` holds one file per source, ``models/`` the configurations, ``machines.toml`` hardware that the
package's table does not have, ``excluded.toml`` what was left out and by which rule, ``misses.toml`` why rows
are missed. A whole source either calibrates or scores; constants of the cost model may be looked at against
the former only.
"""
