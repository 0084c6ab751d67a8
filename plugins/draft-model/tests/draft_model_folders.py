"""Writes draft models into folders, and builds drafters of them without an engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdec_core.draft import BatchView, Draft
from specdec_core.noise import Noise, request_key
from specdec_core.protocols import Proposer
from specdec_core.traits import MethodTraits
from specdec_testing.building import build
from specdec_testing.fakes import FakeRequest, FakeTarget
from specdec_testing.subject import Subject
from specdec_testing.targets import tiny_target

METHOD = "draft_model"
POSITIONS = {"gpt2": "n_positions"}
LAYERS = {"gpt2": "n_layer"}


def saved(folder: Path, model: Any, tokenizer: Any = None, **settings: Any) -> str:
    """Write a model, its tokenizer if it has one, and further keys into config.json; return the folder."""
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    if settings:
        patch(folder, **settings)
    return str(folder)


def patch(folder: str | Path, **settings: Any) -> str:
    """Change keys of config.json."""
    file = Path(folder) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    return str(folder)


def draft(folder: Path, family: str = "llama", tokenizer: Any = None, seed: int = 7, **overrides: Any) -> str:
    """Write a tiny draft model that is not the target of its family: other weights."""
    return saved(folder, tiny_target(family, seed=seed, **overrides), tokenizer)


def drafter(model: str, target: FakeTarget, k: int = 4, **options: Any) -> tuple[Proposer, MethodTraits]:
    """Return a drafter and its traits."""
    built = build(Subject(METHOD, {"model": model, **options}, None), target.info, k)
    return built.proposer(target), built.resolved.traits


def keys(model: str, k: int = 4, **options: Any) -> Mapping[str, Any]:
    """Return a speculative configuration."""
    return {"method": METHOD, "model": model, "num_speculative_tokens": k, **options}


def asked(proposer: Proposer, requests: Sequence[FakeRequest], limit: int, step: int = 0) -> Draft:
    """Ask for drafts of requests in one call, their noise different from step to step."""
    n = len(requests)
    lengths = np.array([len(request.tokens) for request in requests], np.int32)
    noise_keys = np.array([request_key(None, step, i) for i in range(n)], np.uint64)
    batch = BatchView(
        requests=requests,
        run_len=lengths - 1,
        newest_known=np.ones(n, np.bool_),
        max_draft=np.full(n, limit, np.int32),
        noise=Noise(noise_keys, lengths, np.zeros(n, np.int32)),
    )
    return proposer.propose(batch)
