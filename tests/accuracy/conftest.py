"""Puts ``packages/art-topology`` on the path, where the package ``accuracy`` lies; it is not installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "art-topology"))
