"""Lets the tests of this folder import the modules beside them; a tiny target for all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny target that has a chat template."""
    from words import model_folder

    return model_folder(tmp_path_factory.mktemp("target") / "model")
