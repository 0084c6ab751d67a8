"""What a recurrent drafter's checkpoint holds: layers, widths and parts, from names and config.json; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from specdec_nn.checkpoints.reader import INCOMPLETE, OTHER_TARGET, CheckpointReader, Names, Shape, listed
from specdec_plugin_redrafter import names
from specdec_plugin_redrafter.names import LAYER, OUTPUT

MODEL_TYPE: Final = "recurrent_drafting_drafter"
TENSORRT: Final = "redrafter_"  # how keys of TensorRT-LLM begin
INPUT: Final = ("input_proj.weight", "input_proj.bias")
RECURRENT: Final = ("rnn_u.weight", "rnn_u.bias", "rnn_w.weight")
# What the keys of config.json are called, and by TensorRT-LLM.
NUM_LAYERS: Final = ("num_draft_layers", "redrafter_num_layers")
EXIT_DIM: Final = ("exit_dim", "redrafter_exit_dim")
HIDDEN: Final = ("hidden_size", "redrafter_hidden_size")
RNN: Final = ("rnn", "redrafter_is_rnn")
_NUMBER: Final = re.compile(r"layers\.(\d+)\.linear\.(weight|bias)")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A checkpoint that can be built.

    layers     residual layers of the head
    projected  the head's input is brought to its width by a projection
    recurrent  drafts go through a recurrent network; without one their embeddings are added up
    rows       ids that the head knows; beyond the target's are rows of padding, which are never drafted
    notes      where config.json and tensors disagree and the tensors win, in words
    """

    layers: int
    projected: bool
    recurrent: bool
    rows: int
    notes: tuple[str, ...]


class RedrafterReader(CheckpointReader[Layout]):
    """One look at a recurrent drafter."""

    what = "recurrent drafters"

    @classmethod
    def canonical(cls, found: Iterable[str]) -> Names:
        """Return canonical names."""
        return names.canonical(found)

    def look(self) -> Layout | None:
        """Check the drafter against config.json and the target."""
        layers = 1 + max((int(m[1]) for m in map(_NUMBER.fullmatch, self.files) if m), default=-1)
        if self.problems or not self._is_drafter() or not self._is_for_width():
            return None
        projected = any(name in self for name in INPUT)
        recurrent = any(name in self for name in RECURRENT) or self._said(RNN) is True
        wanted = [LAYER.format(i, what) for i in range(layers) for what in ("weight", "bias")]
        wanted += [OUTPUT, *(INPUT if projected else ()), *(RECURRENT if recurrent else ())]
        if not self.require(wanted) or not self._has_one_width(layers, projected):
            return None
        rows = self.shapes[OUTPUT][0]
        self.expect_table(self.files[OUTPUT], rows, self.target.vocab_size)
        notes = tuple(self._notes(layers, recurrent))
        return Layout(layers=layers, projected=projected, recurrent=recurrent, rows=rows, notes=notes)

    def _is_drafter(self) -> bool:
        """Check that there is a drafter, whose output has the place that the layers leave to it."""
        if not any(name == OUTPUT or name.startswith("layers.") for name in self.files):
            kind = f"model_type {self.config.get('model_type')!r}, architectures {self.config.get('architectures')!r}"
            self.wrong(
                f"it has no recurrent drafter, whose tensors are lm_head.0.linear.weight, rnn_u.weight, ... ({kind}), "
                "and the method is redrafter",
                "name the method that this checkpoint is for, or give the checkpoint of a recurrent drafter",
            )
        return not self.problems

    def _is_for_width(self) -> bool:
        """Check the width that config.json names."""
        said, width = self._said(HIDDEN), self.target.hidden_size
        if said not in (None, width):
            self.wrong(f"it was made for a target of width {said}, and this one has {width}", OTHER_TARGET)
        return not self.problems

    def _has_one_width(self, layers: int, projected: bool) -> bool:
        """Check all shapes against the target's width and the head's own."""
        width, output = self.target.hidden_size, self.shapes[OUTPUT]
        inner = output[-1]
        place = names.place_of_output(self.files[OUTPUT])
        if place not in (None, layers):
            self.wrong(f"{self.files[OUTPUT]} is behind {place} layers, and {layers} are there", INCOMPLETE)
        if not projected and inner != 2 * width:
            self.wrong(
                f"{self.files[OUTPUT]} is {list(output)}, and a head of width {inner} over [state ; draft] of width "
                f"{2 * width} needs {' and '.join(INPUT)}, which are missing",
                OTHER_TARGET,
            )
            return False
        shapes: dict[str, Shape] = {OUTPUT: (None, inner), INPUT[0]: (inner, 2 * width), INPUT[1]: (inner,)}
        shapes |= {name: (width, width)[: 1 + name.endswith("weight")] for name in RECURRENT}
        for i in range(layers):
            shapes |= {LAYER.format(i, "weight"): (inner, inner), LAYER.format(i, "bias"): (inner,)}
        return self.expect(shapes, f"a drafter of width {inner} for a target of width {width} has", OTHER_TARGET)

    def _said(self, keys: tuple[str, ...]) -> object:
        """Return the value of a key under either name, None if there is none."""
        return next((self.config[key] for key in keys if self.config.get(key) is not None), None)

    def _notes(self, layers: int, recurrent: bool) -> Iterator[str]:
        pairs = (
            (NUM_LAYERS, layers, f"{layers} layers"),
            (EXIT_DIM, self.shapes[OUTPUT][-1], f"a width of {self.shapes[OUTPUT][-1]}"),
            (RNN, recurrent, "a recurrent network"),
        )
        for keys, found, what in pairs:
            said = self._said(keys)
            if said not in (None, found):
                yield f"config.json has {keys[0]} {said}, and the tensors have {what}"
        foreign = [name for name in self.others if name != names.UNUSED]
        is_whole_model = any(name.startswith(names.TENSORRT) for name in self.files.values())
        if foreign and not is_whole_model:
            yield f"these tensors belong to no drafter: {listed(foreign, 4)}"
