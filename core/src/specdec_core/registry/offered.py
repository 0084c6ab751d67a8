"""Whether what a made object offers can be used as its protocol tells: calls are callable, values are no methods."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isfunction, ismethod
from typing import Any, Final

from specdec_core import protocols
from specdec_core.registry.importing import explain

# What an object that follows a protocol may offer besides.
BESIDES: Final[dict[type, tuple[type, ...]]] = {
    protocols.Proposer: (protocols.MeasuresMemory, protocols.Remembers, protocols.TimesParts),
    protocols.Verifier: (protocols.VerifiesOnDevice, protocols.DrawsForItself),
    protocols.Controller: (protocols.ReadsCosts, protocols.Trims, protocols.ForgetsRequests),
}


def misfits(made: Any, protocol: type) -> Iterator[str]:
    """Yield one text for each attribute that has the name of a call and is none, or of a value and is a method.

    `isinstance` with a protocol looks at names alone. An attribute that is None is one that is not offered.
    """
    for each in (protocol, *BESIDES.get(protocol, ())):
        for name, declared in vars(each).items():
            if name.startswith("_"):
                continue
            try:
                found = getattr(made, name, None)
            except Exception as error:
                yield f"its attribute {name!r} raised {explain(error)}"
                continue
            if found is None:
                continue
            if isfunction(declared) and not callable(found):
                yield f"its attribute {name!r} is of type {type(found).__name__}; {each.__name__} has a method there"
            elif isinstance(declared, property) and ismethod(found):
                yield f"its attribute {name!r} is a method; {each.__name__} has a property there"
