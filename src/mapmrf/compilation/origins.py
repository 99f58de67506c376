"""The sources of machine code on this machine: the archive shipped with the package, and the user's cache."""

from __future__ import annotations

import os
import platform
from functools import cache
from typing import NamedTuple

from mapmrf.compilation.archive import Archive, ArchiveError, write_whole
from mapmrf.compilation.sources import PACKAGE, stamp
from mapmrf.compilation.store import Store, changed_settings, user_store

SHIPPED = PACKAGE / "compiled" / "kernels.bin"
"""The archive shipped in the wheel."""

NATIVE = "native"
"""File in the user's cache that holds the stamp of the kernels if all of them were compiled for this CPU."""


class Baseline(NamedTuple):
    """A CPU for which code is shipped: its name in LLVM, and the features that a machine needs to run it."""

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
"""Baselines by machine architecture."""


class Origin(NamedTuple):
    """A source of code; `code` is None if it cannot be used, and `reason` says why, or describes it."""

    what: str
    code: Archive | Store | None
    reason: str


def baseline() -> Baseline | None:
    """Return the baseline of this machine's architecture, if there is one."""
    return BASELINES.get(platform.machine().lower())


@cache
def origins() -> tuple[Origin, ...]:
    """Return the sources of code in the order in which they are tried."""
    shipped, own = _shipped(), _own()
    return (own, shipped) if is_native() else (shipped, own)


def is_native() -> bool:
    """Return whether all kernels have been compiled for this CPU."""
    try:
        return (user_store().folder / NATIVE).read_text() == stamp()
    except OSError:
        return False


def mark_native() -> None:
    """Record that all kernels have been compiled for this CPU."""
    write_whole(user_store().folder / NATIVE, stamp().encode())
    origins.cache_clear()


def _own() -> Origin:
    store = user_store()
    what = "compiled for this CPU" if is_native() else "compiled on this machine"
    return Origin("cache", store, f"{what}, in {store.folder}")


def _shipped() -> Origin:
    what = "shipped"
    if os.environ.get("MAPMRF_KERNELS") in ("own", "compile"):
        return Origin(what, None, f"MAPMRF_KERNELS={os.environ['MAPMRF_KERNELS']} requests locally compiled code")
    if changed_settings():
        return Origin(what, None, f"NUMBA_{changed_settings()[0]} requires different code")
    if not SHIPPED.exists():
        return Origin(what, None, "not part of this installation")
    try:
        archive = Archive(SHIPPED)
    except ArchiveError as error:
        return Origin(what, None, str(error))
    if archive.stamp != stamp():
        return Origin(what, None, "it was compiled from other sources, or with another Python, numba or llvmlite")
    reason = lacks(archive.cpu)
    return Origin(what, None if reason else archive, reason or f"{len(archive)} kernels for {archive.cpu}")


def lacks(cpu: str) -> str:
    """Return why this machine cannot run code for a baseline CPU, or an empty string."""
    from llvmlite import binding

    base = baseline()
    if base is None or base.cpu != cpu:
        return f"it is for {cpu}, and this machine is {platform.machine()}"
    if not base.features:
        return ""
    have = binding.get_host_cpu_features()
    missing = [name for name in base.features if not have.get(name, False)]
    return f"this CPU lacks {', '.join(missing)}" if missing else ""
