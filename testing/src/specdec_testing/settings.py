"""All that a library may change in a process that is not its own, read at one moment; what differs is named."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as transformers_logging

from specdec_nn.ops.cpu.jit import launch_threads


def settings(*, generators: bool = True) -> dict[str, Any]:
    """Return the settings by name, in forms that can be compared; `generators`: states of random generators too."""
    launch_threads()  # else asking numba would change what torch says
    found = {**_torch(), **_numba(), **_transformers(), **_python(), **_logging(), **_process()}
    return {**found, **_generators()} if generators else found


@contextlib.contextmanager
def unchanged(*, generators: bool = True) -> Iterator[None]:
    """Fail, naming the settings, if the block leaves one of them other than it was."""
    before = settings(generators=generators)
    yield
    gc.collect()  # pools of threads that an error holds
    after = settings(generators=generators)
    changed = {name: (before.get(name), after.get(name)) for name in {*before, *after}}
    changed = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    assert not changed, changed


def _torch() -> dict[str, Any]:
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    modules = torch.nn.modules.module
    return {
        "torch threads": torch.get_num_threads(),
        "torch interop threads": torch.get_num_interop_threads(),
        "torch dtype": torch.get_default_dtype(),
        "torch device": torch.get_default_device(),
        "torch grad": torch.is_grad_enabled(),
        "torch inference": torch.is_inference_mode_enabled(),
        "torch anomaly": torch.is_anomaly_enabled(),
        "torch autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "torch deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_deterministic_debug_mode(),
            getattr(torch.utils.deterministic, "fill_uninitialized_memory", None),
        ),
        "torch matmul precision": torch.get_float32_matmul_precision(),
        "torch cuda": (
            cuda.matmul.allow_bf16_reduced_precision_reduction,
            *(getattr(cuda, f"{kind}_sdp_enabled")() for kind in ("flash", "mem_efficient", "math")),
        ),
        "torch cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        "torch mkldnn": torch.backends.mkldnn.enabled,
        "torch hooks": (len(modules._global_forward_hooks), len(modules._global_forward_pre_hooks)),
        "torch print": repr(torch._tensor_str.PRINT_OPTS),
    }


def _numba() -> dict[str, Any]:
    names = [name for name in dir(numba.config) if name.isupper()]
    return {
        "numba threads": numba.get_num_threads(),
        "numba layer": numba.threading_layer(),
        **{f"numba {name}": getattr(numba.config, name) for name in names},
    }


def _transformers() -> dict[str, Any]:
    return {
        "transformers verbosity": transformers_logging.get_verbosity(),
        "transformers bars": transformers_logging.is_progress_bar_enabled(),
        "transformers attention": {name: ALL_ATTENTION_FUNCTIONS[name] for name in ALL_ATTENTION_FUNCTIONS},
        "transformers types": sorted(transformers.CONFIG_MAPPING._extra_content),
    }


def _python() -> dict[str, Any]:
    return {
        "warnings": (list(warnings.filters), warnings.showwarning, warnings.formatwarning),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "encodings": (sys.stdout.encoding, sys.stderr.encoding, sys.stdout.errors),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook, sys.breakpointhook),
        "path": (list(sys.path), list(sys.meta_path), list(sys.path_hooks)),
        "interpreter": (sys.getrecursionlimit(), sys.getswitchinterval(), sys.dont_write_bytecode),
        "traces": (sys.gettrace(), sys.getprofile(), faulthandler.is_enabled()),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks), gc.get_freeze_count()),
        "at exit": atexit._ncallbacks(),
        "numpy": (np.geterr(), np.geterrcall(), np.get_printoptions()),
        "argv": list(sys.argv),
    }


def _logging() -> dict[str, Any]:
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    made = {name: logger for name, logger in loggers.items() if isinstance(logger, logging.Logger)}
    usual: tuple[Any, ...] = (logging.NOTSET, True, [], [], False)
    states = {name: _state(logger) for name, logger in made.items()}
    return {
        "logging": {name: state for name, state in states.items() if state != usual},
        "logging of all": (logging.root.manager.disable, logging.getLoggerClass(), logging.getLogRecordFactory()),
    }


def _state(logger: logging.Logger) -> tuple[Any, ...]:
    return logger.level, logger.propagate, list(logger.handlers), list(logger.filters), logger.disabled


def _process() -> dict[str, Any]:
    return {
        "environment": dict(os.environ),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "locale": locale.setlocale(locale.LC_ALL),
        "folder": os.getcwd(),
        "temporary folder": tempfile.gettempdir(),
        "threads": {thread.name for thread in threading.enumerate()},
        "socket timeout": socket.getdefaulttimeout(),
    }


def _generators() -> dict[str, Any]:
    state: Any = np.random.get_state(legacy=True)
    return {
        "torch generator": torch.get_rng_state().tolist(),
        "numpy generator": (state[0], state[1].tolist(), *state[2:]),
        "random": random.getstate(),
    }
