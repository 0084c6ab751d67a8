"""A device that is none: tensors on it are computed on the CPU, and whatever makes the host wait is written down.

On a GPU the host runs ahead of the device, and a step is quick as long as it does. Each read of a result, each
operation whose result has a size that only the device knows, and each copy to the device that is not asked for as
`non_blocking` stops that. Tensors of `DEVICE` are subclasses whose operations all come by here, from Python and from
torch's own C++ code alike, so that nothing is overlooked, and mixing them with host tensors fails as it does on a GPU.
Their memory cannot be had: `numpy()` and `data_ptr()` fail, so a kernel for CPUs cannot be run on them by accident.

It uses torch's device for other backends, "privateuseone", which is one a process: run such tests in one of their own.
"""

# mypy: disallow-untyped-calls=False
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils import _device
from torch.utils._pytree import tree_map

NAME: Final = "privateuseone"
DEVICE: Final = torch.device(NAME, 0)
CPU: Final = torch.device("cpu")
aten: Final = torch.ops.aten

_READS: Final = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"}
_SIZED_BY_VALUES: Final = {
    *("nonzero", "argwhere", "masked_select", "unique_dim", "unique_consecutive", "_unique", "_unique2", "bincount"),
}
_INDEXED: Final = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_COPIES: Final = {"copy_", "_to_copy", "_copy_from", "set_"}
# Who may have the address of memory on the device: what launches kernels there.
_LAUNCHERS: Final = (".triton", ".flashinfer")


@dataclass(frozen=True)
class Wait:
    """One operation for which the host waits.

    kind   "read": a value comes to the host; "size": the size of a result does; "copy": a copy to the device that is
           not `non_blocking`
    op     name of the operation in torch
    place  file, line and function from which it was called, the innermost one outside of torch
    """

    kind: Literal["read", "size", "copy"]
    op: str
    place: str


_records: list[list[Wait]] = []


@contextmanager
def waits() -> Iterator[list[Wait]]:
    """Yield a list that is filled with what the host waits for inside, on the thread's behalf or another's."""
    found: list[Wait] = []
    _records.append(found)
    try:
        yield found
    finally:
        _records.remove(found)


class WatchedTensor(Tensor):
    """A tensor of `DEVICE`; `held` is the CPU tensor that has its values, in memory shared with its views."""

    held: Tensor

    @staticmethod
    def __new__(cls: type[WatchedTensor], held: Tensor) -> WatchedTensor:
        """Take the shape, the strides and the dtype of a CPU tensor."""
        made: WatchedTensor = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        return made

    def __init__(self, held: Tensor) -> None:
        """Keep the values."""
        assert not isinstance(held, WatchedTensor)
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] # as torch says

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # narrower than torch declares
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation on what is held; one that is made of others comes by again as these."""
        parts = func.decompose(*args, **(kwargs or {}))
        return _run(func, args, kwargs or {}) if parts is NotImplemented else parts

    def data_ptr(self) -> int:
        """Return the address for a launch on the device; RuntimeError for anybody else."""
        caller = sys._getframe(1)
        while caller.f_globals.get("__name__", "").endswith(".reference") and caller.f_back is not None:
            caller = caller.f_back
        if not str(caller.f_globals.get("__name__", "")).endswith(_LAUNCHERS):
            message = f"{caller.f_globals.get('__name__')} asked for the address of a tensor on a device"
            raise RuntimeError(message)
        return self.held.data_ptr()

    def __getitem__(self, index: Any) -> Any:
        """Return a part; lists and arrays as indices are copied to the device first, as torch does."""
        return super().__getitem__(_index(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write to a part."""
        super().__setitem__(_index(index), value)

    def tolist(self) -> Any:
        """Return the values, after a read."""
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override] # narrower than torch declares
        """Show shape and dtype, since values would be a read."""
        return f"WatchedTensor({tuple(self.shape)}, {self.dtype})"


def _index(index: Any) -> Any:
    """Return an index in which lists and arrays are tensors of the device, which had to be copied there."""
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    if isinstance(index, (list, np.ndarray)):
        found = torch.as_tensor(index)
        return (found if found.numel() else found.long()).to(DEVICE)
    return index


def held(value: Any) -> Any:
    """Return what a tensor of the device holds; anything else as it is."""
    return value.held if isinstance(value, WatchedTensor) else value


def as_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors that runs as one kernel of the device: what happens inside is not looked at."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(tensor, WatchedTensor) for tensor in _tensors((args, kwargs))):
            return function(*args, **kwargs)
        made = function(*tree_map(held, args), **tree_map(held, kwargs))
        return tree_map(partial(_wrapped, {}), made)

    return kernel


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation of torch on what is held, and write down what it makes the host wait for."""
    name = func.overloadpacket.__name__
    if name == "_fused_sdp_choice":
        return 0  # plain products: the others have forms for real devices only
    if name == "_copy_from":
        func, args = aten.copy_.default, (args[1], args[0], *args[2:])
    given = dict(kwargs)
    device = given.get("device")
    to_host = device is not None and torch.device(device).type != NAME
    if device is not None:
        given["device"] = CPU
    given.pop("pin_memory", None)
    _check_places(name, args)
    _note(name, args, kwargs, to_host)
    known: dict[int, WatchedTensor] = {}

    def unwrapped(value: Any) -> Any:
        if isinstance(value, WatchedTensor):
            known[id(value.held)] = value
            return value.held
        return value

    host_args, host_kwargs = tree_map(unwrapped, (args, given))
    made = func(*host_args, **host_kwargs)
    if to_host or (name == "copy_" and not isinstance(args[0], WatchedTensor)):
        return made
    return tree_map(partial(_wrapped, known), made)


def _wrapped(known: dict[int, WatchedTensor], value: Any) -> Any:
    """Return the tensor of the device that holds a value: one that there is already, where an operation wrote to it."""
    if not isinstance(value, Tensor):
        return value
    if id(value) in known:
        return known[id(value)]
    # What looks into a tensor from outside of inference mode is none of that mode, either.
    with torch.inference_mode(value.is_inference()):
        return WatchedTensor(value)


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    tree_map(lambda value: found.append(value) if isinstance(value, Tensor) else None, values)
    return found


def _check_places(name: str, args: Any) -> None:
    """Raise RuntimeError where a tensor of the host meets one of the device, unless torch allows it on a GPU."""
    if name in _COPIES or name in _INDEXED:
        return
    for tensor in _tensors(args):
        if not isinstance(tensor, WatchedTensor) and tensor.dim() > 0:
            message = f"{name}: expected all tensors to be on the same device, but found {DEVICE} and cpu"
            raise RuntimeError(message)


def _note(name: str, args: Any, kwargs: Any, to_host: bool) -> None:
    tensors = _tensors(args)
    on_device = any(isinstance(tensor, WatchedTensor) for tensor in tensors)
    if name in _READS or (to_host and on_device):
        _wait("read", name)
    elif name in ("copy_", "_copy_from"):
        target, source = tensors[:2]
        blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        if isinstance(source, WatchedTensor) and not isinstance(target, WatchedTensor):
            _wait("read", name)
        elif not isinstance(source, WatchedTensor) and blocking and source.numel():
            _wait("copy", name)
    elif name in _SIZED_BY_VALUES or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        _wait("size", name)
    elif name in _INDEXED:
        _note_index(name, args)


def _note_index(name: str, args: Any) -> None:
    indices = _tensors(args[1])
    if any(not isinstance(index, WatchedTensor) and index.dim() > 0 for index in indices):
        _wait("copy", name)
    # One value put where a mask says is a fill, which needs no size.
    fills = "put" in name and args[2].numel() == 1
    if any(index.dtype in (torch.bool, torch.uint8) for index in indices) and not fills:
        _wait("size", name)


def _wait(kind: Literal["read", "size", "copy"], op: str) -> None:
    if not _records:
        return
    found = Wait(kind, op, _place())
    for record in _records:
        record.append(found)


def _place() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and "/torch/" not in file:
            short = file[file.find("specdec_") :] if "specdec_" in file else file
            return f"{short}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "unknown"


class _Module(torch.utils.backend_registration._DummyBackendModule):
    """What torch asks of a device beside its operations."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the dtypes that autocast may be switched off for."""
        return [torch.float16, torch.bfloat16, torch.float32]


_libraries: list[Any] = []


def install() -> torch.device:
    """Make the device known to torch and to Triton's interpreter, for the rest of the process, and return it."""
    if not _libraries:
        torch.utils.backend_registration._setup_privateuseone_for_python_backend(backend_module=_Module())
        library: Any = torch.library.Library
        everything = library("_", "IMPL")
        everything.fallback(_made, "PrivateUse1")
        own = library("aten", "IMPL")
        # torch makes these by writing into an empty tensor that grows, which a wrapper cannot.
        for name in ("arange", "arange.start", "arange.start_step"):
            own.impl(name, _maker(name), "PrivateUse1")
        _libraries.extend((everything, own))
        # These copy numbers to the device below what Python can look into. torch keeps a list of them for `with
        # torch.device(...)`, which has to name the ones that do the work.
        _device._device_constructors()
        torch.tensor, torch.as_tensor = _by_copy(torch.tensor), _by_copy(torch.as_tensor)
        _let_triton_in()
    return DEVICE


def _made(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run what reaches the device without passing a tensor's own hook: makers of tensors, and copies out of C++."""
    return _run(func, args, kwargs)


def _maker(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    func = getattr(getattr(aten, packet), overload or "default")

    def make(*args: Any, **kwargs: Any) -> Any:
        return _run(func, args, kwargs)

    return make


def _by_copy(maker: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a maker of tensors out of numbers that copies them to the device where all can see it."""

    def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type != NAME or isinstance(data, WatchedTensor):
            return maker(data, *args, device=device, **kwargs)
        return maker(data, *args, **kwargs).to(DEVICE)

    return make


def _let_triton_in() -> None:
    """Have Triton's interpreter run kernels on what tensors hold, as a GPU runs them on its memory."""
    try:
        from triton.runtime.interpreter import GridExecutor
    except ImportError:
        return
    plain = GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(self, *map(held, args), **{name: held(value) for name, value in kwargs.items()})

    GridExecutor.__call__ = call
