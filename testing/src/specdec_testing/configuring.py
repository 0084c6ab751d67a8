"""What a method promises about its configuration: traits, defaults and hash; a part of `ProposerContract`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar, Final

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.context import MethodContext
from specdec_core.sources import TargetInfo
from specdec_core.traits import MethodTraits
from specdec_testing.building import Built, build
from specdec_testing.fakes import FakeTarget
from specdec_testing.guard import Contract, foundation
from specdec_testing.subject import Subject

K: Final = "num_speculative_tokens"


class ConfigurationContract(Contract, promises=True):
    """The promises that a resolved configuration shows; fixtures are those of `ProposerContract`."""

    page: ClassVar[str] = "docs/hooks.md"
    stage: ClassVar[int] = 1

    @foundation
    def test_traits_are_the_same_when_asked_twice(self, built: Built, target: FakeTarget) -> None:
        """Traits are a function of options, draft and target."""
        answers = [_ask(built, "specdec_method_traits", target.info, built.resolved.config) for _ in range(2)]
        assert answers[0] == answers[1]
        assert answers[0] is None or isinstance(answers[0], MethodTraits)

    def test_traits_can_be_asked_for_without_a_k(self, built: Built, target: FakeTarget) -> None:
        """Numbers that depend on k survive a k of None: `plugins show` asks without one."""
        traits = _ask(built, "specdec_method_traits", target.info, _without_k(built))
        assert traits is None or isinstance(traits, MethodTraits)

    def test_a_default_k_is_one_that_the_method_takes(self, subject: Subject, built: Built, target: FakeTarget) -> None:
        """A k that the method itself chooses is refused by none of its checks, and warned about by none."""
        defaults = _ask(built, "specdec_method_defaults", target.info, _without_k(built)) or ()
        for default in defaults:
            if default.key == K:
                assert build(subject, target.info, None).resolved.num_speculative_tokens == default.value

    def test_the_same_configuration_has_the_same_hash(self, subject: Subject, built: Built, target: FakeTarget) -> None:
        """Options and traits are plain data that do not change from one resolution to the next."""
        again = build(subject, target.info, built.resolved.num_speculative_tokens)
        assert again.resolved.compute_hash() == built.resolved.compute_hash()
        assert again.resolved == built.resolved and hash(again.resolved) == hash(built.resolved)

    def test_the_resolved_configuration_is_data(self, built: Built) -> None:
        """It comes back from JSON equal and with the same hash, options, traits and draft included."""
        text = json.dumps(built.resolved.as_json(), allow_nan=False)
        again = ResolvedConfig.from_json(json.loads(text), built.registry)
        assert again == built.resolved and hash(again) == hash(built.resolved)
        assert (again.options, again.traits) == (built.resolved.options, built.resolved.traits)


def _without_k(built: Built) -> Any:
    return built.resolved.config.model_copy(update={K: None})


def _ask(built: Built, hook: str, target: TargetInfo, config: Any) -> Any:
    """Call a hook of the method as `resolve` does."""
    resolved, registry = built.resolved, built.registry
    return registry.call(
        registry.plugin(resolved.record), hook, ctx=replace(MethodContext.of(resolved, target), config=config)
    )
