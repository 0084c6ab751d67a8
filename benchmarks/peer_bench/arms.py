"""Which libraries take part, each with its arms, and why one does not; starts nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
K, SHORTEST, LONGEST = 7, 2, 4
NGRAM: Final = {
    "method": "ngram",
    "num_speculative_tokens": K,
    "prompt_lookup_min": SHORTEST,
    "prompt_lookup_max": LONGEST,
}
SUFFIX: Final = {"num_speculative_tokens": 16, "suffix_decoding_max_spec_factor": 2.0}
INSIDE: Final = {**NGRAM, "method": "specdec", "model": "ngram"}
INSIDE_SUFFIX: Final = {
    "method": "specdec",
    "model": "suffix",
    "num_speculative_tokens": SUFFIX["num_speculative_tokens"],
    "specdec": {"suffix_decoding_max_spec_factor": SUFFIX["suffix_decoding_max_spec_factor"]},
}

TRANSFORMERS, TRANSFORMERS_LOOKUP = "transformers", "transformers lookup"
VLLM, VLLM_NGRAM = "vLLM", "vLLM n-gram"
LLAMA, LLAMA_LOOKUP = "llama.cpp", "llama.cpp lookup"
PLAIN, OWN_NGRAM, OWN_SUFFIX = "specdec", "specdec n-gram", "specdec suffix"
INSIDE_NGRAM_ARM, INSIDE_SUFFIX_ARM = "vLLM, specdec n-gram", "vLLM, specdec suffix"
PLAIN_ARMS: Final = (TRANSFORMERS, VLLM, LLAMA, PLAIN)
PLAIN_OF: Final = {
    TRANSFORMERS_LOOKUP: TRANSFORMERS,
    VLLM_NGRAM: VLLM,
    INSIDE_NGRAM_ARM: VLLM,
    INSIDE_SUFFIX_ARM: VLLM,
    LLAMA_LOOKUP: LLAMA,
    OWN_NGRAM: PLAIN,
    OWN_SUFFIX: PLAIN,
}
TOGETHER: Final = (PLAIN, OWN_NGRAM, VLLM, VLLM_NGRAM)  # arms that answer several prompts at one time
REMEMBERING: Final = (OWN_SUFFIX, INSIDE_SUFFIX_ARM)


@dataclass(frozen=True)
class Program:
    """A process to be started: which library, with which arms, in which Python; or why it cannot be."""

    library: str
    python: str
    arms: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    missing: str | None = None


def programs(vllm_python: Path, llama_python: Path, inside: bool) -> list[Program]:
    """Return all processes, those that cannot be started with the reason."""
    own = sys.executable
    lookup = {"prompt_lookup_num_tokens": K, "max_matching_ngram_size": LONGEST}
    no_vllm = _missing(vllm_python, "vllm", "`make test-vllm` makes an environment with it")
    vllm_arms = {VLLM: None, VLLM_NGRAM: NGRAM}
    if inside:
        vllm_arms |= {INSIDE_NGRAM_ARM: INSIDE, INSIDE_SUFFIX_ARM: INSIDE_SUFFIX}
    gguf, no_llama = (
        "",
        _missing(llama_python, "llama_cpp", "pip install llama-cpp-python"),
    )
    if no_llama is None:
        from peer_bench.gguf_file import bfloat16_file

        try:
            gguf = str(bfloat16_file())
        except (ImportError, FileNotFoundError) as error:
            no_llama = f"no bfloat16 .gguf file: {error}"
    return [
        Program("transformers", own, {TRANSFORMERS: {}, TRANSFORMERS_LOOKUP: lookup}),
        Program("specdec", own, {PLAIN: None, OWN_NGRAM: NGRAM, OWN_SUFFIX: {"method": "suffix", **SUFFIX}}),
        *(Program("vllm", str(vllm_python), {arm: c}, missing=no_vllm) for arm, c in vllm_arms.items()),
        Program(
            "llama",
            str(llama_python),
            {LLAMA: None, LLAMA_LOOKUP: {"max_ngram_size": LONGEST, "num_pred_tokens": K}},
            {"gguf": gguf},
            no_llama,
        ),
    ]


def _missing(python: Path, module: str, cure: str) -> str | None:
    """Return why a Python cannot import a module, None if it can."""
    if not python.exists():
        return f"there is no {python}: {cure}"
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    found = subprocess.run([str(python), "-c", look], capture_output=True, check=False)
    return None if found.returncode == 0 else f"{python} has no {module}: {cure}"
