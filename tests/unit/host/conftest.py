"""Puts the machine builders of tests/data/host on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "data" / "host"))
