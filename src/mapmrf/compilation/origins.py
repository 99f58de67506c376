"""Where machine code may come from on this machine: what ships with the package, and the user's own cache."""

from __future__ import annotations

import os
import platform
from functools import cache
from typing import NamedTuple

from mapmrf.compilation.archive import Archive, ArchiveError, write_whole
from mapmrf.compilation.sources import PACKAGE, stamp
from mapmrf.compilation.store import Store, changed_settings, user_store

SHIPPED = PACKAGE / "compiled" / "kernels.bin"
"""The archive that a wheel brings."""

NATIVE = "native"
"""A file in the user's cache that holds the stamp of the kernels which were all compiled for this very CPU."""


class Baseline(NamedTuple):
    """A CPU that code ships for: its name in LLVM, and the features that a machine must have to run it."""

    cpu: str
    features: tuple[str, ...] = ()


_V3 = (
    "avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "fxsr", "lzcnt", "mmx", "movbe", "popcnt", "sahf",
    "sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3", "xsave",
)  # fmt: skip

BASELINES = {
    "x86_64": Baseline("x86-64-v3", _V3),
    "amd64": Baseline("x86-64-v3", _V3),
    "aarch64": Baseline("generic"),
    "arm64": Baseline("generic"),
}
"""By the machine's architecture."""


class Origin(NamedTuple):
    """A place that code may come from; `code` is None where it cannot be used, and `reason` says why or what it is."""

    what: str
    code: Archive | Store | None
    reason: str


def baseline() -> Baseline | None:
    """What code ships for on a machine like this."""
    return BASELINES.get(platform.machine().lower())


@cache
def origins() -> tuple[Origin, ...]:
    """The places to ask for code, in order."""
    shipped, own = _shipped(), _own()
    return (own, shipped) if is_native() else (shipped, own)


def is_native() -> bool:
    """Whether all kernels have been compiled for this very CPU."""
    try:
        return (user_store().folder / NATIVE).read_text() == stamp()
    except OSError:
        return False


def mark_native() -> None:
    """Note that all kernels have been compiled for this very CPU."""
    write_whole(user_store().folder / NATIVE, stamp().encode())
    origins.cache_clear()


def _own() -> Origin:
    store = user_store()
    what = "compiled for this very CPU" if is_native() else "what had to be compiled here"
    return Origin("cache", store, f"{what}, in {store.folder}")


def _shipped() -> Origin:
    what = "shipped"
    if os.environ.get("MAPMRF_KERNELS") in ("own", "compile"):
        return Origin(what, None, f"MAPMRF_KERNELS={os.environ['MAPMRF_KERNELS']} asks for code made on this machine")
    if changed_settings():
        return Origin(what, None, f"NUMBA_{changed_settings()[0]} asks for other code")
    if not SHIPPED.exists():
        return Origin(what, None, "this installation brought none")
    try:
        archive = Archive(SHIPPED)
    except ArchiveError as error:
        return Origin(what, None, str(error))
    if archive.stamp != stamp():
        return Origin(what, None, "it was compiled from other sources, or with another Python, numba or llvmlite")
    reason = lacks(archive.cpu)
    return Origin(what, None if reason else archive, reason or f"{len(archive)} kernels for {archive.cpu}")


def lacks(cpu: str) -> str:
    """Why this machine cannot run code for a baseline, or nothing."""
    from llvmlite import binding

    base = baseline()
    if base is None or base.cpu != cpu:
        return f"it is for {cpu}, and this machine is {platform.machine()}"
    if not base.features:
        return ""
    have = binding.get_host_cpu_features()
    missing = [name for name in base.features if not have.get(name, False)]
    return f"this CPU lacks {', '.join(missing)}" if missing else ""
