"""Lets the tests import the scripted machine beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
