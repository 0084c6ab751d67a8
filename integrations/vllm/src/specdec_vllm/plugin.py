"""The entry point that vLLM runs in each of its processes: what of vLLM is changed, one step after the other."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Final

from specdec_core.registry.tried import warn_if_newer
from specdec_vllm.log import logger
from specdec_vllm.patching import Mismatch, find, is_ours

SWITCH: Final = "SPECDEC_VLLM"
OFF: Final = ("0", "false", "off", "no")
# Each returns what it did, None if there was nothing to do, and raises Mismatch before it has changed anything.
STEPS: Final = (
    ("specdec_vllm.method", "accept"),
    ("specdec_vllm.runner", "introduce"),
    ("specdec_vllm.runner", "ask_near_the_end"),
    ("specdec_vllm.suffix", "stand_in"),
    ("specdec_vllm.sampling", "fix_expanding"),
    ("specdec_vllm.sampling", "fix_empty_steps"),
    ("specdec_vllm.bridge.call", "install"),
    ("specdec_vllm.bridge.call", "show_answers"),
)


def is_off() -> bool:
    """Return whether the user wants vLLM unchanged."""
    return os.environ.get(SWITCH, "").strip().lower() in OFF


def register() -> None:
    """Change vLLM where it is as expected; a step that does not fit is left out with one line. Never raises."""
    if is_off():
        logger.info("%s is %s: vLLM stays as it is", SWITCH, os.environ[SWITCH])
        return
    warn_if_newer("vllm")
    done = [what for step in STEPS if (what := _try(*step)) is not None]
    logger.debug("specdec: %s", "; ".join(done) or "nothing to do")


def takes_the_method() -> bool:
    """Return whether `{"method": "specdec"}` works in this process."""
    return is_ours(find("vllm.engine.arg_utils", "SpeculativeConfig"))


def _try(module: str, name: str) -> str | None:
    if importlib.util.find_spec(module) is None:
        return None
    try:
        step: Callable[[], str | None] = getattr(importlib.import_module(module), name)
        return step()
    except Mismatch as error:
        logger.warning("specdec leaves %s.%s out, since this vLLM is not the one it knows: %s", module, name, error)
    except (Exception, SystemExit) as error:
        logger.warning("specdec leaves %s.%s out: %s: %s", module, name, type(error).__name__, error, exc_info=error)
    return None
