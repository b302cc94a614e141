"""The environment that a rank's process wants to be started in; light, for the launcher to read."""


def rank_environment(threads: int) -> dict[str, str]:
    """Environment variables (name to value) for the process of a rank that computes with ``threads`` threads.

    They are read when torch is loaded, so they must be there when the process starts. ``OMP_WAIT_POLICY``
    makes a thread that waits for another sleep instead of spinning. On processors shared with other work,
    spinning threads keep the ones they wait for from running: a step then took four times as long. Python's
    warnings about the syntax of installed packages are of no use to a user.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONWARNINGS": "ignore::SyntaxWarning",
    }
