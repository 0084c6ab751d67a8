"""Runs the command line as `python -m specdec`."""

from __future__ import annotations

import sys

from specdec.cli import main

if __name__ == "__main__":
    sys.exit(main())
