"""The two pluggy markers: what a hook specification and a hook implementation are marked with."""

from __future__ import annotations

from typing import Final

import pluggy

PROJECT: Final = "specdec"
hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
