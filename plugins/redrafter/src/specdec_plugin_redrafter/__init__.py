"""ReDrafter: a recurrent drafter over the target's last state; chains, and beams packed into trees."""

from __future__ import annotations

__version__ = "0.1.0"
