"""What a DFlash or DSpark checkpoint is: sizes, switches and tensors, from config.json and tensor names; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource, Note, TargetInfo, language_config
from specdec_nn.checkpoints.decoder import BECAUSE, DecoderReader
from specdec_nn.checkpoints.reader import OTHER_TARGET, Shapes
from specdec_plugin_dflash import names, reading
from specdec_plugin_dflash.additions import NONE, Additions, AdditionsReader
from specdec_plugin_dflash.names import DSPARK
from specdec_plugin_dflash.reading import LayerAttention
from specdec_plugin_dflash.refusing import omni_problem, unbuilt


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A checkpoint that can be built.

    method          "dflash" or "dspark"
    config          its configuration as plain data, with a rope_theta
    shapes          shape of each tensor by the name used here
    width           its hidden width H_d
    attention       what each layer does
    vocab_size      rows of its own head, or of the target's where that is borrowed
    aux             R_k indices of the target states it reads, ascending; () = the final hidden state
    mask_token      the id in the places of unknown tokens
    mask_embedding  the file with that id's vector, None where it is in the embedding
    block_size      rows it was trained on, None if it gives none
    from_anchor     the row of the newest id is a prediction already
    value_scale     factor of all values
    additions       what it has on top of its block
    split_half      rotary pairs are dimensions of the two halves of a head, else neighbours
    """

    method: str
    config: Mapping[str, Any]
    shapes: Shapes
    width: int
    attention: tuple[LayerAttention, ...]
    vocab_size: int
    aux: tuple[int, ...]
    mask_token: int
    mask_embedding: Path | None
    block_size: int | None
    from_anchor: bool
    value_scale: float
    split_half: bool
    additions: Additions = NONE

    @property
    def first_place(self) -> int:
        """The row of a block that the first draft is made of."""
        return 0 if self.from_anchor or self.additions.shifted else 1

    @property
    def most_tokens(self) -> int | None:
        """The most drafts that a block can have, None for any number."""
        return None if self.additions.block_size is None else self.additions.block_size - 1

    def rows(self, k: int) -> int:
        """Return how many rows a block of k drafts has."""
        return k if self.from_anchor else k + 1

    @property
    def confident(self) -> bool:
        """Whether it estimates the acceptance of its drafts."""
        return names.CONFIDENCE in self.shapes and self.config.get("enable_confidence_head") is not False


class DFlashReader(DecoderReader[Layout]):
    """One look at a DFlash or DSpark head, for the method that was asked for."""

    spelling = names.SPELLING
    floats = names.FLOATS

    def __init__(self, method: str, draft: DraftSource, target: TargetInfo) -> None:
        """Look at names and shapes; nothing else is read."""
        super().__init__(draft, target)
        self.method, self.additions = method, NONE

    def look(self) -> Layout | None:
        """Check the head against its config.json and the target."""
        refused = unbuilt(self.method, self.source, self.shapes)
        if refused is not None:
            self.wrong(*refused)
            return None
        num_layers = self.num_layers
        if names.HIDDEN_NORM in self and self.shapes[names.HIDDEN_NORM]:
            self._read_additions(self.shapes[names.HIDDEN_NORM][0], num_layers)
        if not self._has_its_tensors(num_layers):
            return None
        width = self._width()
        if self.has_heads():
            for i in range(num_layers):
                self.expect_layer(i, width, width)
        self.expect({names.NORM: (width,)}, BECAUSE)
        vocab_size = self.tables(width, self.config.get("draft_vocab_size"))
        attention, aux = self._attention(num_layers), self._aux(num_layers)
        mask_embedding, mask_token = self._mask_embedding(), self._mask_token()
        if mask_embedding is not None and not self.problems:
            self._check_mask(mask_embedding, mask_token, width)
        if self.method == DSPARK:
            self._check_markov(width, vocab_size)
            omni = omni_problem(self.config, next(iter(self.source.architectures), ""))
            if omni is not None:
                self.wrong(omni, "correct its config.json")
        from_anchor = reading.samples_anchor(self.config, self.method == DSPARK)
        return Layout(
            method=self.method,
            config=reading.rope_keys(self.config),
            shapes=self.shapes,
            width=width,
            attention=attention,
            vocab_size=vocab_size,
            aux=aux,
            mask_token=mask_token,
            mask_embedding=mask_embedding,
            block_size=reading.block_size(self.config),
            from_anchor=from_anchor,
            value_scale=float(reading.setting(self.config, "attention_value_scale", 1.0)),
            split_half=self.config.get("is_neox_style") is not False,
            additions=self.additions,
        )

    def _read_additions(self, width: int, num_layers: int) -> None:
        """Read what a DFlash head has on top of its block, and check its tables of ids."""
        architecture = next(iter(self.source.architectures), "")
        reader = AdditionsReader(self, self.config, architecture, num_layers)
        if self.method == DSPARK:
            reader.cap()
            return
        self.additions = reader.read(width, language_config(self.target.hf_config))
        if self.additions.kind is None:
            return
        fewer = self.config.get("draft_vocab_size")
        if "d2t" in self or (isinstance(fewer, int) and fewer < self.target.vocab_size):
            self.wrong(f"{self.additions.kind} heads choose among all ids of the target, and it knows fewer")
        candidates, vocab_size = self.additions.candidates, self.target.vocab_size
        if candidates > vocab_size:
            self.wrong(f"its selector_top_k is {candidates}, and the target has {vocab_size} ids")
        for name, shape in self.additions.shapes.items():
            if shape[0] is None and len(self.shapes.get(name, ())) == len(shape):
                self.expect_whole_table(name)

    def expect_whole_table(self, name: str) -> None:
        """Add a problem for a table that has not a row for each of the target's ids, or more than padding."""
        rows, vocab_size = self.shapes[name][0], self.target.vocab_size
        self.expect_table(name, rows, vocab_size)
        if rows < vocab_size:
            self.wrong(f"{name} is {list(self.shapes[name])}, and has to have a row for each of {vocab_size} ids")

    @property
    def _reads_aux(self) -> bool:
        return reading.setting(self.config, "use_aux_hidden_state") is not False

    def _has_its_tensors(self, num_layers: int) -> bool:
        wanted = names.required(self.method, num_layers, aux=self._reads_aux)
        sinks = [f"layers.{i}.{names.SINKS}" for i in range(num_layers)]
        said = reading.setting(self.config, "attention_sink_bias", self.config.get("add_swa_attention_sink_bias"))
        self.require([*wanted, *sinks] if said else wanted)
        if said is False and any(name in self.shapes for name in sinks):
            self.wrong("it has attention sinks, and its config.json has attention_sink_bias false")
        known = names.allowed(self.method, num_layers) | self.additions.shapes.keys()
        self.refuse_others(known, "heads made of Qwen3 layers are built here")
        if not self._reads_aux and names.FC in self.shapes:
            self.wrong("its config.json has use_aux_hidden_state false, and it has an fc.weight for such states")
        said_layers = self.config.get("num_hidden_layers")
        if said_layers is not None and said_layers != num_layers:
            self.wrong(f"it has {num_layers} layers, and its config.json has num_hidden_layers {said_layers}")
        return not self.problems

    def _width(self) -> int:
        """Return the head's width, and check it against the target's."""
        target, width = self.target.hidden_size, self.shapes[names.HIDDEN_NORM][0]
        if self.is_for_width() and not self._reads_aux and width != target:
            self.wrong(f"it reads the final state, so its width {width} would have to be the target's {target}")
        if names.W1 in self.shapes:
            self.expect_table(names.W1, self.shapes[names.W1][0], self.target.vocab_size)
        return width

    def _attention(self, num_layers: int) -> tuple[LayerAttention, ...]:
        try:
            return reading.attention(self.config, num_layers)
        except ValueError as error:
            self.wrong(f"its config.json: {error}")
            return ()

    def _aux(self, num_layers: int) -> tuple[int, ...]:
        """Return the target states that are read, as many as fc takes."""
        if not self._reads_aux:
            return ()
        try:
            found, note = reading.aux_layers(self.config, self.target.num_layers, num_layers)
        except ValueError as error:
            self.wrong(str(error), OTHER_TARGET)
            return ()
        if note:
            self.notes.append(Note(key="target_layer_ids", value=list(found), reason=note))
        fc, width = self.shapes[names.FC], self.target.hidden_size
        if fc != (self.shapes[names.HIDDEN_NORM][0], len(found) * width):
            self.wrong(
                f"fc.weight is {list(fc)}, and the states after {list(found)} layers of a target of width {width} make "
                f"it [{self.shapes[names.HIDDEN_NORM][0]}, {len(found) * width}]",
                "give a head that was trained for this target, or correct target_layer_ids in its config.json",
            )
        return found

    def _mask_embedding(self) -> Path | None:
        place = self.source.path
        file = (place if place.is_dir() else place.parent) / "mask_embedding.pt"
        return file if file.is_file() else None

    def _check_mask(self, file: Path, token: int, width: int) -> None:
        from specdec_plugin_dflash.mask import read_mask  # only such a file needs torch before the target is loaded

        try:
            read_mask(file, token, width)
        except ConfigError as error:
            self.wrong(str(error))

    def _mask_token(self) -> int:
        token = reading.mask_token(self.config)
        if token is None:
            self.wrong(f"its config.json has no mask id, under none of {', '.join(reading.MASK_KEYS)}")
            return 0
        rows = self.shapes.get(names.EMBEDDING, (self.target.vocab_size,))[0]
        if token >= rows and self._mask_embedding() is None:
            self.wrong(f"its mask id {token} is outside of the {rows} rows of the embedding")
        return token

    def _check_markov(self, width: int, vocab_size: int) -> None:
        kind = self.config.get("markov_head_type")
        if kind not in (None, "vanilla"):
            self.wrong(f"its markov_head_type is {kind!r}, and only vanilla ones are built here")
        w1, w2 = self.shapes[names.W1], self.shapes[names.W2]
        if len(w1) != 2 or w1[0] < self.target.vocab_size:
            self.wrong(f"{names.W1} is {list(w1)}, and has to have a row for each of {self.target.vocab_size} ids")
        elif w2 != (vocab_size, w1[1]):
            self.wrong(f"{names.W2} is {list(w2)}, and {names.W1} and the head make it [{vocab_size}, {w1[1]}]")
        found = self.shapes.get(names.CONFIDENCE)
        if self.config.get("enable_confidence_head") and found is None:
            self.wrong(f"its config.json has a confidence head, and the tensor {names.CONFIDENCE} is missing")
        said = self.config.get("confidence_head_with_markov")
        fitting = [width + w1[-1] * with_markov for with_markov in (False, True) if said is None or said == with_markov]
        if found is not None and found not in [(1, columns) for columns in fitting]:
            self.wrong(f"{names.CONFIDENCE} is {list(found)}, and its config.json makes it [1, {fitting[-1]}]")
