"""Hooks of the verifiers; imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec import hookimpl

if TYPE_CHECKING:
    from specdec.protocols import Verifier


class VerifiersPlugin:
    """Offers `coupled`."""

    @hookimpl
    def specdec_make_verifier(self, method: str) -> Verifier:
        """Build the verifier of that name; none of them has options of its own."""
        from specdec_plugin_verifiers.coupled import Coupled

        return {"coupled": Coupled}[method]()


plugin = VerifiersPlugin()
