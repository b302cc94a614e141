"""What commands print with ``--json``, one module for each command. A command imports its own alone.

Keys keep their names and meaning; new ones may be added. ``art-topology schema --output COMMAND`` prints the
JSON Schema of each.
"""
