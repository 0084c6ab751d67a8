"""What a hook is told of a configured method, and of what its proposer is built from; torch-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from specdec_core.errors import ConfigError, TargetError
from specdec_core.first_layers import FirstLayers, OffersFirstLayers
from specdec_core.target_keys import OffersTargetKeys, TargetKeys

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions, ResolvedConfig, SpeculativeConfig
    from specdec_core.protocols import Proposer
    from specdec_core.registry.kernels import Kernels
    from specdec_core.sources import DraftSource, TargetHandle, TargetInfo
    from specdec_core.traits import MethodTraits

Options = TypeVar("Options", bound="MethodOptions", covariant=True)


@dataclass(frozen=True, kw_only=True)
class MethodContext(Generic[Options]):
    """One configured method, as its hooks see it: `def specdec_check(self, ctx: MethodContext[MyOptions])`.

    method   the method's name; a plugin may offer several
    config   the common keys; k is None while the user gives none and no default is known
    options  the method's own keys, an instance of what `specdec_method_options` returned
    draft    its checkpoint, config.json as the method reads it; None if the configuration has none
    target   what is known of the target without loading it
    parts    the methods that this one is made of (`specdec_method_parts`), each resolved; empty for most
    """

    method: str
    config: SpeculativeConfig
    options: Options
    draft: DraftSource | None
    target: TargetInfo
    parts: tuple[ResolvedConfig, ...] = ()

    @classmethod
    def of(cls, resolved: ResolvedConfig, target: TargetInfo) -> MethodContext[MethodOptions]:
        """Return what the hooks of a resolved method are told."""
        return MethodContext(
            method=resolved.method,
            config=resolved.config,
            options=resolved.options,
            draft=resolved.draft,
            target=target,
            parts=resolved.parts,
        )

    @property
    def checkpoint(self) -> DraftSource:
        """The draft checkpoint; raises ConfigError without one. With `traits.weights` "own", checks may rely on it."""
        if self.draft is None:
            message = f"{self.method} needs a draft checkpoint, and none was given; give its folder or hub id as model"
            raise ConfigError(message)
        return self.draft

    @property
    def samples_drafts(self) -> bool:
        """Whether drafts are to be drawn from a distribution: `draft_sample_method` is "probabilistic"."""
        return self.config.draft_sample_method == "probabilistic"

    @property
    def shares_noise(self) -> bool:
        """Whether drafts are to be drawn with the target's own noise: sampled ones under the `coupled` verifier."""
        return self.samples_drafts and self.config.rejection_sample_method == "coupled"


@dataclass(frozen=True, kw_only=True)
class ProposerBuild:
    """What a proposer is built from, once the target is loaded and everything is resolved.

    target                  the loaded target
    kernels                 the kernels that the session may use: `kernels.get(op, device)`
    num_speculative_tokens  k
    max_model_len           no draft is at this position or beyond
    traits                  the traits that the method returned
    verifier                name of the verifier
    strict                  the host raises errors of plugins; a method that calls others raises theirs as well
    make                    builds the proposer of one of `MethodContext.parts`
    """

    target: TargetHandle
    kernels: Kernels
    num_speculative_tokens: int
    max_model_len: int
    traits: MethodTraits
    verifier: str
    strict: bool
    make: Callable[[ResolvedConfig], Proposer]

    def first_layers(self) -> FirstLayers:
        """Return the first `traits.first_layers` layers of the target, which the proposer has to close.

        Raises TargetError where the host does not run a part of its target, or cannot do so with this one.
        """
        if not isinstance(self.target, OffersFirstLayers):
            message = (
                f"the drafter runs the first {self.traits.first_layers} layers of the target by themselves, and this "
                f"host runs its target as a whole only ({type(self.target).__name__} has no first_layers)"
            )
            raise TargetError(message)
        return self.target.first_layers(self.traits.first_layers, self.num_speculative_tokens, self.kernels)

    def target_keys(self) -> TargetKeys:
        """Return the target's own keys and values, for a method with the trait; the proposer has to close them.

        Raises TargetError where the host does not lend them, or cannot do so with this target.
        """
        if not isinstance(self.target, OffersTargetKeys):
            message = (
                "the drafter attends to the target's own keys and values, and this host keeps them to itself "
                f"({type(self.target).__name__} has no target_keys)"
            )
            raise TargetError(message)
        return self.target.target_keys(self.kernels)
