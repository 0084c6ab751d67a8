"""What every trainer of heads promises, as a test class: subclass it, name the method, run pytest. No engine needed.

The promise that matters: what a trainer believes its head drafts is what the method's proposer drafts from the files of
that head, id for id, so that nothing is learned for a head that decoding does not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from specdec_core.config.options import validate
from specdec_core.draft import BatchView, Draft
from specdec_core.training import HeadTraining, TrainedHead, Trainer, TrainerBuild, TrainingBatch
from specdec_nn.training.batches import Packing, ahead
from specdec_testing.building import build, registry_of
from specdec_testing.checking import host_rows
from specdec_testing.driving import Driver, Script
from specdec_testing.fakes import FakeTarget
from specdec_testing.guard import Contract, foundation
from specdec_testing.subject import Subject, SubjectFixtures
from specdec_testing.targets import tiny_target

HOOK: Final = "specdec_make_trainer"
SHAPE: Final = (4, 48)  # lanes and rows of a batch
STEPS, RATE = 120, 3e-3
GAIN: Final = 8.0  # of the states of a target that is sure of what it says


@dataclass(frozen=True)
class Text:
    """A text with states; after `specdec_core.training.TrainingRequest`."""

    ids: Tensor
    prompt: int
    last: Tensor
    aux: Tensor


@dataclass(frozen=True)
class Texts:
    """Texts in memory; after `specdec_core.training.TrainingData`."""

    train: Sequence[Text]
    held_out: Sequence[Text]

    def requests(self, held_out: bool = False) -> Sequence[Text]:
        """Return the texts of either kind."""
        return self.held_out if held_out else self.train


def pattern_texts(target: FakeTarget, layers: int, count: int = 40, length: int = 40, cycle: int = 24) -> Texts:
    """Return texts that go around a cycle of ids, with states from which the target's head predicts the next id.

    What is between the layers is a vector for each id, with some noise. One text in four is held out.
    """
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    ids = torch.from_numpy(rng.permutation(np.arange(3, target.info.vocab_size))[:cycle].copy())
    head = target.model.get_output_embeddings().weight.detach()  # type: ignore[operator] # untyped
    between = torch.randn(target.info.vocab_size, layers * target.info.hidden_size, generator=generator)
    texts = []
    for _ in range(count):
        start = int(rng.integers(cycle))
        around = ids[(start + torch.arange(length + 1)) % cycle]
        rows = head[around[1:]]
        last = GAIN * rows / rows.norm(dim=-1, keepdim=True)
        aux = between[around[:-1]]
        aux = aux + 0.1 * torch.randn(aux.shape, generator=generator)
        texts.append(Text(around[:length], 6, last.to(target.dtype), aux.to(target.dtype)))
    return Texts([text for i, text in enumerate(texts) if i % 4], texts[::4])


def save_head(head: TrainedHead, folder: Path) -> str:
    """Write a head's files and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(head.config)))
    save_file({name: tensor.contiguous() for name, tensor in head.tensors.items()}, folder / "model.safetensors")
    return str(folder)


class Compared:
    """Watches a driver, and compares the drafts of each call with what the trainer drafts behind the same ids.

    count, deepest  drafts that were compared, and the most of one request
    differences     those that are not equal, in words
    """

    def __init__(self, trainer: Trainer, layers: int, width: int) -> None:
        """Take the trainer, and how many states of which width lie side by side in `aux`."""
        self._trainer, self._size = trainer, layers * width
        self._width = width
        self._rows: dict[str, list[tuple[int, Tensor, Tensor]]] = {}
        self.count, self.deepest = 0, 0
        self.differences: list[str] = []

    def __call__(self, batch: BatchView, draft: Draft) -> None:
        """Take in the rows of a call, then compare its drafts."""
        rows = batch.rows
        assert rows is not None, "heads are given rows"
        for i, (owner, position) in enumerate(zip(rows.request.tolist(), rows.positions.tolist(), strict=True)):
            last = torch.zeros(self._width) if rows.hidden is None else rows.hidden[i].clone()
            aux = torch.zeros(self._size) if rows.aux is None else rows.aux[i].flatten().clone()
            self._rows.setdefault(batch.request(owner).id, []).append((position, last, aux))
        for i, drafted in enumerate(host_rows(draft)):
            if drafted:
                self._compare(batch.request(i).id, batch.request(i).tokens.tolist(), int(batch.run_len[i]), drafted)

    def _compare(self, name: str, known: list[int], run_len: int, drafted: list[int]) -> None:
        ids = torch.tensor([*known[: run_len + 1], *drafted])
        last, aux = torch.zeros(len(ids), self._width), torch.zeros(len(ids), self._size)
        for position, own_last, own_aux in self._rows[name]:
            last[position], aux[position] = own_last, own_aux  # a request that was preempted is run again
        length = torch.arange(len(ids))
        batch = TrainingBatch(
            ids=ids[None],
            positions=length[None],
            request=torch.zeros(1, len(ids), dtype=torch.int64),
            written=torch.ones(1, len(ids), dtype=torch.bool),
            last=last[None],
            aux=aux[None],
        )
        wanted = self._trainer.drafts(batch)[0, run_len - 1, : len(drafted)].tolist()
        self.count += len(drafted)
        self.deepest = max(self.deepest, len(drafted))
        if wanted != drafted[: len(wanted)]:
            self.differences.append(
                f"{name} behind {run_len} rows: the proposer drafts {drafted}, the trainer {wanted}"
            )


class TrainerContract(SubjectFixtures, Contract, promises=True):
    """The promises of a trainer.

    A subclass gives the fixtures `method` and `options` (of the training; choose float32 where weights are rounded when
    they are written), and may give `plugins`, `aux_layers` (those that the data have) and `method_options` (keys of the
    speculative configuration with which the head is to draft).
    """

    page: ClassVar[str] = "docs/hooks.md"

    @pytest.fixture
    def target(self) -> FakeTarget:
        """Return the target."""
        return FakeTarget(tiny_target("llama", num_hidden_layers=8))

    @pytest.fixture
    def training(self, method: str, plugins: Mapping[str, Any] | None) -> HeadTraining:
        """Return what the method's plugin answers."""
        registry = registry_of(plugins)
        made: HeadTraining = registry.make(registry.find("proposer", method), HOOK, HeadTraining, method=method)
        return made

    @pytest.fixture
    def aux_layers(self, training: HeadTraining, target: FakeTarget) -> tuple[int, ...]:
        """Return the layers whose states the data have."""
        return training.aux_layers(target.info)

    @pytest.fixture
    def method_options(self) -> Mapping[str, Any]:
        """Return keys of the speculative configuration beside the method and the head's folder."""
        return {}

    @pytest.fixture
    def texts(self, target: FakeTarget, aux_layers: tuple[int, ...]) -> Texts:
        """Return texts in which each id follows from the one before."""
        return pattern_texts(target, len(aux_layers))

    @pytest.fixture
    def trainer(
        self,
        method: str,
        options: Mapping[str, Any],
        training: HeadTraining,
        target: FakeTarget,
        texts: Texts,
        aux_layers: tuple[int, ...],
    ) -> Trainer:
        """Return the trainer before its first step."""
        chosen, problems = validate(training.options, options)
        assert chosen is not None and not problems, f"options {dict(options)} are not taken: {problems}"
        build = TrainerBuild(
            method=method,
            options=chosen,
            target=target,
            weights=target.model.state_dict(),
            data=texts,
            aux_layers=aux_layers,
            seed=0,
        )
        return training.make(build)

    @foundation
    def test_every_option_has_a_default_and_a_description(self, training: HeadTraining) -> None:
        """So that nothing need be chosen, and help can be printed."""
        training.options()
        silent = [name for name, field in training.options.model_fields.items() if not field.description]
        assert silent == [], "options without a description"

    @foundation
    def test_the_proposer_drafts_what_the_trainer_believes(
        self,
        subject: Subject,
        trainer: Trainer,
        target: FakeTarget,
        method_options: Mapping[str, Any],
        tmp_path: Path,
    ) -> None:
        """Id for id, at every depth, from the files of the head: with chunks, rejections and preemption."""
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in trainer.module.parameters():  # first weights may be zeros, or one another's
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        folder = save_head(trainer.head(), tmp_path / "head")
        head = Subject(subject.method, {"model": folder, **method_options}, subject.plugins)
        built = build(head, target.info, 3)
        traits = built.resolved.traits
        scripts = [
            Script("long", tuple(range(3, 24)), seed=1, chunk=6, limits=(3,), accept=(0, 2, 3, 1), steps=7),
            Script("short", (5,), seed=2, join=1, limits=(3, 1), accept=(3, 0, 1), steps=7, preempt=3),
        ]
        compared = Compared(trainer, len(traits.aux_layers), target.info.hidden_size)
        driver = Driver(built.proposer(target), traits, target)
        driver.see = compared
        driver.run(scripts)
        driver.proposer.close()
        assert driver.problems == []
        assert compared.differences == []
        assert compared.count > 12

    def test_the_loss_falls_and_held_out_drafts_become_right(self, trainer: Trainer, texts: Texts) -> None:
        """On texts in which each id follows from the one before."""
        packing, held_out = Packing(texts.requests(), *SHAPE), Packing(texts.requests(held_out=True), *SHAPE)
        measured = held_out.batch(held_out.epoch(None)[0])
        before, first = shares_right(trainer, measured), None
        groups = [{"params": list(group["params"])} for group in trainer.parameters()]
        optimizer = torch.optim.AdamW(groups, lr=RATE)
        batches = [packing.batch(chosen) for number in range(STEPS) for chosen in packing.epoch(0, number)[:1]]
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            loss = trainer.loss(batch, step / len(batches))
            torch.autograd.backward(loss)
            optimizer.step()
            first = float(loss.detach()) if first is None else first
        assert first is not None
        assert float(loss.detach()) < 0.7 * first
        after = shares_right(trainer, measured)
        assert all(new > old or old == 1.0 for new, old in zip(after, before, strict=True))
        assert after[0] > 0.9

    def test_the_loss_depends_on_the_module_and_the_batch_alone(self, trainer: Trainer, texts: Texts) -> None:
        """So that a run that was killed resumes to the same weights."""
        packing = Packing(texts.requests(), *SHAPE)
        batch = packing.batch(packing.epoch(0)[0])
        state = {name: tensor.clone() for name, tensor in trainer.module.state_dict().items()}
        losses = [float(trainer.loss(batch, progress).detach()) for progress in (0.0, 0.9)]
        with torch.no_grad():
            for parameter in trainer.module.parameters():
                parameter.add_(1.0)
        torch.autograd.backward(trainer.loss(batch, 0.5))
        trainer.module.load_state_dict(state)
        assert [float(trainer.loss(batch, progress).detach()) for progress in (0.0, 0.9)] == losses


def shares_right(trainer: Trainer, batch: TrainingBatch) -> list[float]:
    """Return for each depth the share of drafts that are the batch's own ids."""
    drafts = trainer.drafts(batch)
    wanted = torch.stack([ahead(batch.ids, depth + 2) for depth in range(drafts.shape[-1])], dim=-1)
    same = torch.stack([ahead(batch.request + 1, d + 2) == batch.request + 1 for d in range(drafts.shape[-1])], dim=-1)
    counts = (drafts >= 0) & same & (batch.request >= 0)[..., None]
    shares: list[float] = (((drafts == wanted) & counts).sum(dim=(0, 1)) / counts.sum(dim=(0, 1))).tolist()
    return shares
