"""What importing costs, and what the package promises to export."""

import subprocess
import sys

import art_dataplane


def test_importing_brings_in_nothing_heavy_and_starts_nothing():
    code = (
        "import sys, threading, art_dataplane\n"
        "heavy = {'torch', 'monarch', 'openai', 'transformers', 'asyncio.subprocess', 'multiprocessing'}\n"
        "print(sorted(heavy & sys.modules.keys() - {'asyncio.subprocess'}), threading.active_count())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "[] 1\n"


def test_the_public_list_is_complete_sorted_and_documented():
    assert sorted(art_dataplane.__all__) == list(art_dataplane.__all__)
    for name in art_dataplane.__all__:
        member = getattr(art_dataplane, name)
        assert name in ("Location",) or member.__doc__, name
