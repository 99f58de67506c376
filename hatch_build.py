"""The hook of the wheel's build: compile all kernels for a baseline CPU and put the machine code into the wheel.

Such a wheel is for one platform and one Python, and its code is used where numba and llvmlite have the versions that it
was made with; with others, kernels are compiled when they are first used. Without numba, on a machine without a
baseline, or with MAPMRF_BUILD=pure in the environment the wheel is a pure one. ``pip install -v`` shows how far the
compiler is.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILE = """
import sys
sys.path.insert(0, sys.argv[1])  # not by PYTHONPATH, which pip uses itself
from mapmrf.compilation.precompile import main
main(sys.argv[2], int(sys.argv[3]))
"""


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds ``mapmrf/compiled/kernels.bin``."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the archive, unless this is an editable install."""
        if version == "editable" or os.environ.get("MAPMRF_BUILD") == "pure":
            return
        self.folder = tempfile.TemporaryDirectory()
        archive = Path(self.folder.name) / "kernels.bin"
        reason = self.compile(archive)
        if reason:
            print(f"mapmrf: the wheel will contain no compiled kernels: {reason}", file=sys.stderr)
            return
        build_data["force_include"][str(archive)] = "mapmrf/compiled/kernels.bin"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if os.environ.get("AUDITWHEEL_PLAT"):  # in the containers that releases are built in
            python = f"cp{sys.version_info.major}{sys.version_info.minor}"
            build_data["tag"] = f"{python}-{python}-{os.environ['AUDITWHEEL_PLAT']}"

    def compile(self, archive: Path) -> str:
        """Compile all kernels in a process of its own; returns why that failed, or nothing."""
        if importlib.util.find_spec("numba") is None:
            return "numba is not installed"
        arguments = [str(Path(self.root) / "src"), str(archive), str(os.cpu_count() or 1)]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-u", "-c", COMPILE, *arguments], env=environment)
        return "" if done.returncode == 0 else f"the compiler ended with code {done.returncode}, see above"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the archive, which is in the wheel now."""
        if hasattr(self, "folder"):
            self.folder.cleanup()
