"""What art-serving runs inside the vLLM environment.

The package is installed next to vLLM in an environment of its own and is never imported by art-serving. It
talks to it by a command line, a ready file, a statistics page in memory and HTTP on one address.
"""
