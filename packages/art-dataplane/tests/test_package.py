"""What importing costs, and what the package promises to export."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

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
        # What an alias stands for has no docstring of its own; the reference is checked for its.
        assert member.__doc__ or not (inspect.isclass(member) or inspect.isfunction(member)), name


def test_the_example_of_the_readme_prints_what_it_says():
    text = (Path(__file__).parents[1] / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    said = re.findall(r"print\(batch\.\w+\) +# (\[[\d ]+\])", code)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert len(said) == 3
    assert ended.stdout.splitlines() == said
