"""One examination of a pair: its files, then a short run, then a report with a verdict and hints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_engine.bench.arms import ModelOptions, arena_tokens, describe_target, encode
from specdec_engine.bench.prompts import BenchPrompt
from specdec_engine.llm import LLM
from specdec_engine.pair.findings import Finding, look, overflow
from specdec_engine.pair.probe import Tried, probe
from specdec_engine.pair.verdict import acceptance, hints
from specdec_engine.sampling_params import SamplingParams

K: Final = "num_speculative_tokens"
FEW: Final = 3  # drafts of a step, where neither the user nor the method has a number
TOGETHER: Final = 8
ROOM: Final = 64  # positions of a request for drafts


@dataclass(frozen=True)
class Report:
    """What was found. `tried` is empty where the files alone show that the pair cannot run."""

    target: str
    draft: str
    findings: tuple[Finding, ...]
    tried: tuple[Tried, ...] = ()
    failures: int = 0

    @property
    def hints(self) -> list[str]:
        """What to change, most telling first."""
        return list(hints(self.tried, self.findings)) if self.tried else []

    @property
    def verdict(self) -> str:
        """ "good", "weak", "bad" or "no drafts" by what was accepted; "cannot run"; "problem" by the files alone."""
        if not self.tried:
            return "cannot run"
        found = acceptance(self.tried)
        wrong = any(finding.state == "problem" for finding in self.findings) or self.failures
        return "problem" if wrong and found == "good" else found

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "verdict": self.verdict,
            "target": self.target,
            "draft": self.draft,
            "hints": self.hints,
            "findings": [asdict(finding) for finding in self.findings],
            "tried": [asdict(each) for each in self.tried],
            "failures": self.failures,
        }

    def lines(self) -> Iterator[str]:
        """Yield lines for people."""
        yield from map(str, self.findings)
        for each in self.tried:
            share = "no drafts" if each.first is None else f"{each.first:.2f} of first drafts accepted"
            yield f"{each.name}: {share}, {each.accepted} of {each.drafted} drafts in all"
        if self.failures:
            yield f"the proposer failed in {self.failures} steps: see the log"
        yield from (f"hint: {hint}" for hint in self.hints)
        yield f"verdict: {self.verdict}"


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What is to be examined; `more` are further keys of the speculative configuration."""

    model: ModelOptions
    draft: str
    more: Mapping[str, Any]
    prompts: Sequence[BenchPrompt]
    max_tokens: int
    chat: bool

    def run(self) -> Report:
        """Examine the pair. Raises TargetError for a target that cannot be loaded, PluginError for a plugin."""
        target = describe_target(self.model)
        config = {**self.more, "model": self.draft}
        try:
            resolved = self._resolved(config, target)
        except ConfigError as error:
            problems = [Finding("configuration", "problem", str(problem)) for problem in error.problems]
            return Report(
                self.model.model, self.draft, tuple(problems or [Finding("configuration", "problem", str(error))])
            )
        findings = list(look(target, resolved))
        config.setdefault(K, resolved.num_speculative_tokens)
        with self._llm(config, target) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=self.max_tokens)
            further = overflow(resolved, llm._engine.target.dtype)
            findings += [] if further is None else [further]
            ids = encode(llm, self.prompts, self.chat, params)
            tried = tuple(probe(llm, ids, self.max_tokens))
            failures = llm.get_metrics().failures
        return Report(self.model.model, self.draft, tuple(findings), tried, failures)

    def _resolved(self, config: Mapping[str, Any], target: TargetInfo) -> ResolvedConfig:
        """Return the configuration as resolved, with a few drafts where nobody says how many."""
        registry = Registry(Catalog.discover().with_local(self.model.plugins))
        try:
            return resolve(dict(config), target, registry)
        except ConfigError as error:
            if K in config or not any(problem.key == K for problem in error.problems):
                raise
            return resolve({**config, K: FEW}, target, registry)

    def _llm(self, config: Mapping[str, Any], target: TargetInfo) -> LLM:
        """Return the engine; without prefix reuse, which would hand over states of an earlier variant."""
        longest = max(len(prompt.text.encode()) for prompt in self.prompts) + ROOM
        room = arena_tokens([longest], self.max_tokens, TOGETHER, ROOM, target.max_model_len)
        return LLM(
            self.model.model,
            dict(config),
            dtype=self.model.dtype,
            device=self.model.device,
            max_model_len=self.model.max_model_len,
            max_num_seqs=TOGETHER,
            kv_cache_tokens=room,
            revision=self.model.revision,
            trust_remote_code=self.model.trust_remote_code,
            plugins=self.model.plugins,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
