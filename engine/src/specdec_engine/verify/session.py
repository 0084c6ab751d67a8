"""One verification from its checks to its report: engines, the three tests, what is printed and written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from specdec_core.cli.output import emit
from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig, SpeculativeConfig
from specdec_core.errors import ConfigError, RequestError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_engine.bench.arms import Arm, closing, describe_target
from specdec_engine.bench.prompted import Prompted
from specdec_engine.llm import LLM
from specdec_engine.verify.distribution import Counted, Sampling
from specdec_engine.verify.tokens import Compared, compare_tokens

TOGETHER: Final = 16  # requests that run at one time
GUESS: Final = 64  # drafts of a step for which room is left, where the method's own number is larger than asked
EXIT: Final = {"ok": 0, "fault": 1, "untested": 3}


@dataclass(frozen=True)
class Report:
    """What was found.

    promise     "tokens" where sampled tokens are plain decoding's, "distribution" where only their distribution is
    failures    steps whose proposer failed: it raised, or its drafts broke the contract
    """

    method: str
    verifier: str
    promise: str
    tokens: tuple[Compared, ...]
    distribution: tuple[Counted, ...]
    failures: int

    @property
    def verdict(self) -> str:
        """ "fault" if anything is one, "untested" where no draft was verified at all, else "ok"."""
        verdicts = [*(part.verdict for part in self.tokens), *(part.verdict for part in self.distribution)]
        if self.failures or "fault" in verdicts:
            return "fault"
        return "ok" if "ok" in verdicts else "untested"

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "verdict": self.verdict,
            "method": self.method,
            "verifier": self.verifier,
            "promise": self.promise,
            **{part.name: part.as_json() for part in self.tokens},
            "distribution": [part.as_json() for part in self.distribution],
            "failures": self.failures,
        }

    def lines(self) -> Iterator[str]:
        """Yield lines for people."""
        for part in self.tokens:
            yield from part.lines()
        if self.distribution:
            yield f"distribution under {self.verifier!r}, ids counted:"
            yield from (f"  {part}" for part in self.distribution)
        if self.failures:
            yield f"the proposer of {self.method!r} failed in {self.failures} steps, each logged or counted: fault"
        hint = (
            "; no draft was verified: give prompts that the method has drafts for" if self.verdict == "untested" else ""
        )
        yield f"verdict: {self.verdict}{hint}"


@dataclass(frozen=True, kw_only=True)
class Verification(Prompted):
    """What is to be verified.

    temperature  of the seeded test; above 0
    draws        samples of a prompt for the test of the distribution; 0: no such test
    positions    prompts that are sampled for it
    """

    speculative_config: str
    temperature: float
    draws: int
    positions: int
    json: Path | None

    def run(self) -> int:
        """Verify, print and write; return 0 for "ok", 1 for a fault, 3 where no draft was verified.

        Raises ConfigError for a verifier that promises nothing, like any SpecdecError for what cannot work.
        """
        target = describe_target(self.model)
        config = SpeculativeConfig.parse(self.speculative_config)
        resolved = self._resolved(config, target)
        k = max(resolved.num_speculative_tokens, GUESS)
        with self.opened(target, TOGETHER, k) as (plain, work):
            fast = self._fast(plain.llm, config, resolved)
            with closing([fast]):
                report = self._report(plain, fast, work.ids, resolved)
        for line in report.lines():
            emit(line)
        self._write(report)
        return EXIT[report.verdict]

    def _resolved(self, config: SpeculativeConfig, target: TargetInfo) -> ResolvedConfig:
        """Return the configuration as resolved; no weights are loaded for one that cannot be verified."""
        resolved = resolve(config, target, Registry(Catalog.discover().with_local(self.model.plugins)))
        if not resolved.lossless:
            message = (
                f"the verifier {resolved.verifier!r} changes the target's distribution by design, so there is nothing "
                "to verify; choose 'coupled', 'standard' or 'block' as rejection_sample_method"
            )
            raise ConfigError(message)
        return resolved

    def _fast(self, plain: LLM, config: SpeculativeConfig, resolved: ResolvedConfig) -> Arm:
        """Return the engine that speculates, as a user has it: with prefix reuse, on the weights of `plain`."""
        llm = LLM(
            self.model.model,
            config,
            hf_model=plain.model,
            tokenizer=plain.tokenizer,
            max_model_len=plain.max_model_len,
            max_num_seqs=TOGETHER,
            kv_cache_tokens=plain.kv_cache_tokens,
            decode_width=self.model.decode_width,
            revision=self.model.revision,
            trust_remote_code=self.model.trust_remote_code,
            plugins=self.model.plugins,
            disable_log_stats=True,
        )
        return Arm(resolved.method, llm, resolved.lossless, resolved.emits_host_draws)

    def _report(self, plain: Arm, fast: Arm, ids: Sequence[Sequence[int]], resolved: ResolvedConfig) -> Report:
        exact = self.model.decode_width is not None
        greedy = compare_tokens("greedy", plain, fast, ids, replace(self.params, temperature=0.0), exact)
        tokens, counted = [greedy], []
        if fast.same_draws:
            params = replace(self.params, temperature=self.temperature)
            tokens.append(compare_tokens("seeded", plain, fast, ids, params, exact))
        elif self.draws:
            sampling = Sampling(plain.llm, fast.llm, self.draws, self.params.seed or 0)
            for prompt in range(min(self.positions, len(ids))):
                counted.append(sampling.count(prompt, ids[prompt], greedy.answers[prompt]))
        return Report(
            method=resolved.method,
            verifier=resolved.verifier,
            promise="tokens" if fast.same_draws else "distribution",
            tokens=tuple(tokens),
            distribution=tuple(counted),
            failures=fast.llm.get_metrics().failures,
        )

    def _write(self, report: Report) -> None:
        if self.json is None:
            return
        texts = [{"where": prompt.where, "prompt": prompt.text} for prompt in self.prompts]
        text = json.dumps({**report.as_json(), "model": self.model.model, "prompts": texts}, indent=1)
        try:
            self.json.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            message = f"--json {self.json} cannot be written: {error.strerror or error}"
            raise RequestError(message) from error
