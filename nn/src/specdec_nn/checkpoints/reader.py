"""Looks at a head's checkpoint by canonical names and collects every problem; it knows no method. No torch.

A method subclasses CheckpointReader: `spelling` has the accepted spellings of its tensors, and `look` asks for what the
head consists of and returns what the method calls its layout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

from specdec_core.config.padding import table_problem
from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource, Note, Problem, TargetInfo
from specdec_nn.checkpoints.maps import map_problem
from specdec_nn.checkpoints.names import Spelling, canonical_names

FLOATS: Final = ("float32", "bfloat16", "float16", "float64")  # dtypes of weights that are read
SCALE: Final = "_scale_inv"  # ending of the tensor with the block scales of an FP8 weight
INCOMPLETE: Final = "the file is incomplete; download it again"
OTHER_TARGET: Final = "give a head that was trained for this target"
LISTED: Final = 8

Shape = tuple[int | None, ...]  # None: any length
Shapes = Mapping[str, tuple[int, ...]]
Names = tuple[dict[str, str], tuple[str, ...]]  # as `canonical_names` returns them
Sort = Callable[[Iterable[str]], Names]
Layout = TypeVar("Layout")


class Tensors:
    """Names and shapes of a head's tensors, and the problems that were found with them.

    model     what the checkpoint is called in messages
    files     name in the file by canonical name
    shapes    shape by canonical name
    scales    name in the file of the FP8 block scales of a weight, by the canonical name of the weight
    others    names in the file that are not the head's
    problems  everything that is wrong so far
    """

    def __init__(self, model: str, shapes: Callable[[], Shapes], sort: Sort) -> None:
        """Take what reads the shapes by name in the file, and what returns canonical names; either may raise."""
        self.model = model
        self.problems: list[Problem] = []
        self.files: dict[str, str] = {}
        self.others: tuple[str, ...] = ()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.scales: dict[str, str] = {}
        try:
            found = shapes()
            scales = {name for name in found if name.endswith(SCALE) and name.removesuffix(SCALE) in found}
            self.files, self.others = sort(found.keys() - scales)
        except ConfigError as error:
            self.wrong(str(error))
            return
        self.shapes = {name: found[file] for name, file in self.files.items()}
        self.scales = {name: file + SCALE for name, file in self.files.items() if file + SCALE in scales}

    def __contains__(self, name: str) -> bool:
        """Return whether there is a tensor of this canonical name."""
        return name in self.files

    def wrong(self, message: str, next_step: str = "", key: str = "model") -> None:
        """Add a problem: what was given and what was expected, what to do next, and the option that it is about."""
        self.problems.append(Problem(key=key, message=f"{self.model!r}: {message}", next_step=next_step))

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return those of the names that no tensor has, in order, each once."""
        return [name for name in dict.fromkeys(names) if name not in self.files]

    def require(self, names: Iterable[str], next_step: str = INCOMPLETE) -> bool:
        """Add a problem listing all tensors that are missing, and return whether none is."""
        missing = self.missing(names)
        if missing:
            self.wrong(f"these tensors are missing: {', '.join(missing)}", next_step)
        return not missing

    def expect(self, shapes: Mapping[str, Shape], because: str, next_step: str = "") -> bool:
        """Add a problem for each tensor of another shape, and return whether none is; absent tensors are skipped.

        `because` says what makes the shapes: "its config.json makes it", before the expected shape.
        """
        right = True
        for name, shape in shapes.items():
            found = self.shapes.get(name)
            if found is not None and not fits(found, shape):
                right = False
                self.wrong(f"{self.files[name]} is {list(found)}, and {because} {written(shape)}", next_step)
        return right

    def expect_table(self, what: str, rows: int, vocab_size: int) -> None:
        """Add a problem if padding does not explain how far a table's rows are from the target's vocabulary."""
        problem = table_problem(what, rows, vocab_size)
        if problem is not None:
            self.wrong(problem, OTHER_TARGET)

    def refuse_others(self, known: Collection[str], next_step: str) -> None:
        """Add a problem for tensors that are not known."""
        extra = sorted(set(self.files) - set(known))
        if extra:
            self.wrong(f"nothing here knows what these tensors are for: {listed(extra, LISTED)}", next_step)

    def raise_problems(self) -> None:
        """Raise one ConfigError listing every problem with its next step, if there is any."""
        if self.problems:
            texts = [f"{p.message} ({p.next_step})" if p.next_step else p.message for p in self.problems]
            raise ConfigError("; ".join(texts))


class CheckpointReader(Tensors, ABC, Generic[Layout]):
    """One look at a head's checkpoint, for the target that it shall draft for. Reads names, shapes and dtypes, and maps
    of ids, no weights.

    source  the checkpoint
    config  its config.json as the method's hooks have made it, or as it is in the file where `original` is set
    notes   what was read otherwise than it is written
    """

    spelling: ClassVar[Spelling] = Spelling()
    original: ClassVar[bool] = False  # config.json as it is in the file
    what: ClassVar[str] = "heads"  # in messages, plural
    floats: ClassVar[tuple[str, ...]] = (".weight", ".bias")  # endings of tensors in floating point

    def __init__(self, source: DraftSource, target: TargetInfo) -> None:
        """Read names and shapes; what cannot be read is a problem like any other."""
        super().__init__(source.model, lambda: source.tensor_shapes, self.canonical)
        self.source, self.target = source, target
        self.config: Mapping[str, Any] = (source.original if self.original else source).hf_config
        self.notes: list[Note] = []

    @classmethod
    def canonical(cls, names: Iterable[str]) -> Names:
        """Return canonical names; raises ConfigError. For methods whose spellings depend on each other to override."""
        return canonical_names(names, cls.spelling)

    @classmethod
    def names_of(cls, source: DraftSource) -> Mapping[str, str]:
        """Return the name in the file of each tensor by canonical name, for detection.

        Empty for a checkpoint that cannot be read: no method claims it, and the one that is asked for it reports why.
        """
        try:
            return cls.canonical(source.tensor_names)[0]
        except ConfigError:
            return {}

    @classmethod
    def shapes_of(cls, source: DraftSource) -> tuple[Mapping[str, str], Shapes]:
        """Return names as `names_of` does, and shapes by canonical name; both empty if they cannot be read."""
        try:
            shapes = source.tensor_shapes
            files = cls.canonical(shapes)[0]
        except ConfigError:
            return {}, {}
        return files, {name: shapes[file] for name, file in files.items()}

    def integers(self, name: str) -> list[int] | None:
        """Return the values of a tensor of whole numbers, flat; None, and a problem, if they cannot be read."""
        try:
            return self.source.integers(self.files[name])
        except ConfigError as error:
            self.wrong(str(error))
            return None

    def expect_floats(self, names: Iterable[str]) -> None:
        """Add a problem for each tensor of `floats` among these that is neither in floating point nor FP8 with scales.

        A host that has the method by itself may know more formats, so these are problems of the drafter here alone.
        """
        dtypes = self.source.tensor_dtypes
        for name in sorted(names):
            dtype = dtypes[self.files[name]]
            if dtype not in FLOATS and name not in self.scales and name.endswith(self.floats):
                message = f"{self.model!r}: {self.files[name]} is {dtype}; {self.what} are read in floating point"
                self.problems.append(Problem(key="model", message=message, drafter_only=True))

    def expect_maps(self) -> None:
        """Add a problem for maps d2t and t2d that do not name some of the target's ids, each once."""
        if "t2d" in self:
            self.expect_table("the map t2d", self.shapes["t2d"][0], self.target.vocab_size)
        if "d2t" not in self:
            return
        d2t, t2d = self.integers("d2t"), self.integers("t2d") if "t2d" in self else None
        if d2t is None or (t2d is None and "t2d" in self):
            return
        problem = map_problem(d2t, t2d, self.target.vocab_size)
        if problem is not None:
            self.wrong(problem, INCOMPLETE)

    @abstractmethod
    def look(self) -> Layout | None:
        """Check everything and return the layout; what it returns beside problems is not used."""

    def layout(self) -> Layout | None:
        """Return the layout, None if `problems` says why there is none; problems of dtypes do not count."""
        found = None if self.problems else self.look()
        if self.problems:
            return None
        self.expect_floats(self.files)
        return found

    def checked(self) -> Layout:
        """Return the layout; raises one ConfigError with every problem if there is none."""
        layout = self.layout()
        self.raise_problems()
        assert layout is not None
        return layout

    @property
    def num_layers(self) -> int:
        """One more than the largest number in names `layers.N.*`."""
        return 1 + max(int(name.split(".")[1]) for name in self.files if name.startswith("layers."))


def written(shape: Shape) -> str:
    """Return a shape as text, "any" for a free length."""
    return str(list(shape)) if None not in shape else f"[{', '.join('any' if n is None else str(n) for n in shape)}]"


def listed(names: Collection[str], most: int = LISTED) -> str:
    """Return names in order, those past the `most` first as their number."""
    more = len(names) - most
    shown = ", ".join(sorted(names)[:most])
    return shown if more <= 0 else f"{shown} and {more} more"


def fits(found: tuple[int, ...], shape: Shape) -> bool:
    """Return whether a shape is the expected one."""
    return len(found) == len(shape) and all(want in (None, have) for have, want in zip(found, shape, strict=True))
