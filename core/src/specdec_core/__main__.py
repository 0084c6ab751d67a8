"""Runs the command line as `python -m specdec_core`."""

from __future__ import annotations

import sys

from specdec_core.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
