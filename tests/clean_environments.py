"""An environment of its own for the test of a distribution: what is installed here, and that one besides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class Environment:
    """A virtual environment that sees the packages of this one; nothing that is installed in it is seen here."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.programs = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = str(self.programs / "python")
        site = self.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
        packages = [path for path in sys.path if Path(path).name in ("site-packages", "src", "dist-packages")]
        (Path(site) / "these.pth").write_text("\n".join(packages) + "\n")

    def install(self, project: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python]
        command = [*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(project)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, program: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run `python`, or the module of that name with this environment's Python."""
        command = [self.python, *([] if program == "python" else ["-m", program]), *arguments]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "PYTHON", "SPECDEC"))}
        more = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
        return subprocess.run(command, cwd=cwd, env={**clean, **more}, capture_output=True, text=True, timeout=900)
