"""Resumable and verified downloads of the catalogue's models.

A file is named ``.part`` until it is complete and its uncompressed content has the checksum of the catalogue.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import quote, urlsplit

from mapmrf._version import __version__
from mapmrf.datasets.catalogue import SUFFIXES, Entry, locate, matches, plain_file, verify
from mapmrf.errors import FormatError, MapMRFError, OptionError
from mapmrf.formats.files import compression, read_bytes

ATTEMPTS = 4  # consecutive attempts without progress after which the download ends
PAUSE = 1.0  # seconds before the second attempt; doubled before each further one

_ARCHIVES = (".tgz", ".tar.gz", ".zip")
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error, LZMAError)

Listener = Callable[[str, int, int | None], None]
"""Called with the name of a file, the number of bytes received, and their total if known."""


class DownloadError(MapMRFError):
    """A file could not be fetched."""


class NotOnServer(DownloadError):
    """The server does not have the file."""


class DownloadStopped(DownloadError):
    """The download cannot continue: the server does not respond, or nothing can be written."""


class WrongContent(DownloadError):
    """The content does not match the catalogue."""


@dataclass
class DownloadReport:
    """The outcome of a download."""

    # fetched, present: models that were downloaded, and those that were already present
    fetched: list[Entry] = field(default_factory=list)
    present: list[Entry] = field(default_factory=list)
    # models without a known public address, or missing from their archive
    by_hand: list[Entry] = field(default_factory=list)
    failed: dict[Entry, str] = field(default_factory=dict)  # error message for each of the others


def download(
    wanted: Iterable[Entry],
    folder: str | os.PathLike[str],
    *,
    source: str | None = None,
    listener: Listener | None = None,
) -> DownloadReport:
    """Download the models that are not yet in a data folder, from a mirror or every one from its public address."""
    # `source` is the base address of a mirror with the layout of a data folder, its files compressed or not. After a
    # `DownloadStopped`, the next call resumes the download.
    if source is not None and urlsplit(source).scheme not in ("http", "https"):
        raise OptionError(f"source is {source!r}, expected an http or https address")
    report = DownloadReport()
    run = _DownloadRun(Path(folder), listener or (lambda name, done, total: None), report)
    by_archive: dict[str, list[Entry]] = {}
    for entry in wanted:
        if run.is_there(entry):
            continue
        if source is not None:
            base = f"{source.rstrip('/')}/{quote(plain_file(entry))}"
            run.single(entry, [f"{base}{suffix}" for suffix in SUFFIXES])
        elif entry.url.endswith(_ARCHIVES):
            by_archive.setdefault(entry.url, []).append(entry)
        elif entry.url:
            run.single(entry, [entry.url])
        else:
            report.by_hand.append(entry)
    for url, members in by_archive.items():
        run.archive(url, members)
    return report


@dataclass(frozen=True)
class _DownloadRun:
    folder: Path
    listener: Listener
    report: DownloadReport

    def is_there(self, entry: Entry) -> bool:
        """Return whether the file of an entry is present; one with other content is reported and left alone."""
        path = locate(entry, self.folder)
        if path is None:
            return False
        if verify(entry, path) is False:
            self.report.failed[entry] = f"{path}: checksum differs from the catalogue; remove it to download again"
        else:
            self.report.present.append(entry)
        return True

    def single(self, entry: Entry, urls: list[str]) -> None:
        """Fetch a model from the first address that has it."""
        try:
            self._first(entry, urls)
            self.report.fetched.append(entry)
        except DownloadStopped:
            raise
        except DownloadError as error:
            self.report.failed[entry] = str(error)

    def _first(self, entry: Entry, urls: list[str]) -> None:
        missing = []
        for url in urls:
            target = self._target(entry, url)
            try:
                return self._complete(url, target, entry.sha256 is not None, partial(_place, entry, target))
            except NotOnServer as error:
                missing.append(error)
        raise missing[0]

    def archive(self, url: str, members: list[Entry]) -> None:
        """Fetch an archive, extract the requested models and delete it."""
        target = (self.folder / members[0].file).with_name(PurePosixPath(url).name)
        try:
            self._complete(url, target, True, lambda part: self._unpack(part, members))
            _part(target).unlink()
        except DownloadStopped:
            raise
        except DownloadError as error:
            left = [entry for entry in members if entry not in self.report.fetched]
            self.report.failed.update(dict.fromkeys(left, str(error)))

    def _unpack(self, part: Path, members: list[Entry]) -> None:
        """Extract the models, except those that were extracted before the archive turned out to be damaged."""
        left = [entry for entry in members if entry not in self.report.fetched]
        wanted = {PurePosixPath(plain_file(entry)).name: entry for entry in left}
        try:
            for name, file in _files(part):
                entry = wanted.pop(name.removesuffix(compression(name)), None)
                if entry is not None:
                    self._member(entry, self._target(entry, name), file.read())
        except _DAMAGED as error:
            raise WrongContent(f"damaged archive: {' '.join(str(error).split())}") from None
        self.report.by_hand += wanted.values()

    def _member(self, entry: Entry, target: Path, content: bytes) -> None:
        part = _part(target)
        part.write_bytes(content)
        try:
            _place(entry, target, part)
            self.report.fetched.append(entry)
            self.report.failed.pop(entry, None)
        except WrongContent as error:
            part.unlink()
            self.report.failed[entry] = f"{target.name}: {error}"

    def _target(self, entry: Entry, name: str) -> Path:
        return self.folder / f"{plain_file(entry)}{compression(name)}"

    def _complete(self, url: str, target: Path, resumable: bool, use: Callable[[Path], None]) -> None:
        """Fetch a file and use it; start again if a resumed one turns out to be wrong."""
        part = _part(target)
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DownloadStopped(f"{part.parent}: cannot create the folder: {error.strerror}") from None
        if not os.access(part.parent, os.W_OK):
            raise DownloadStopped(f"{part.parent}: no permission to write")
        if not resumable:  # without a checksum, nothing tells whether old and new pieces belong together
            part.unlink(missing_ok=True)
        while True:
            resumed = _size(part) > 0
            fetch(url, part, lambda done, total: self.listener(target.name, done, total))
            try:
                return use(part)
            except WrongContent as error:
                part.unlink()
                if not resumed:
                    raise WrongContent(f"{url}: {error}") from None


# -- one file --------------------------------------------------------------------------------------------------------


def fetch(url: str, part: Path, listener: Callable[[int, int | None], None]) -> None:
    """Fetch an address into a file, resuming a partial one; retry after temporary failures."""
    # Raises DownloadStopped if `ATTEMPTS` consecutive attempts made no progress.
    tries = 0
    while True:
        before = _size(part)
        reason = _try(url, part, listener)
        if not reason:
            return
        tries = 1 if _size(part) > before else tries + 1
        if tries >= ATTEMPTS:
            raise DownloadStopped(f"{url}: {reason}")
        time.sleep(PAUSE * 2 ** (tries - 1))


def _try(url: str, part: Path, listener: Callable[[int, int | None], None]) -> str:
    """Fetch once; return the reason why the rest is missing, or an empty string if the file is complete."""
    from requests import HTTPError, RequestException

    try:
        try:
            _transfer(url, part, listener)
        except BaseException:
            if _size(part) == 0:  # leave no empty file behind
                part.unlink(missing_ok=True)
            raise
        return ""
    except HTTPError as error:
        answer: Any = error.response
        said = f"{answer.status_code} {answer.reason}"
        if answer.status_code == 416 and _size(part):
            # Handle the response that nothing is left to send: the file is complete, or has changed.
            if answer.headers.get("Content-Range", "").rpartition("/")[2] == str(_size(part)):
                return ""
            part.unlink()
            return "the partial file does not belong to this download"
        if answer.status_code in (408, 429, 500, 502, 503, 504):  # it may be better soon
            return said
        raise (NotOnServer if answer.status_code in (404, 410) else DownloadError)(f"{url}: {said}") from None
    except (OSError, RequestException) as error:
        cause: BaseException = error  # the system's message, without those of the libraries in between
        while cause.__context__ is not None:
            cause = cause.__context__
        return getattr(cause, "strerror", None) or " ".join(str(cause).split()) or type(cause).__name__


def _transfer(url: str, part: Path, listener: Callable[[int, int | None], None]) -> None:
    """Let pooch fetch the file, or the rest of it if the server supports that."""
    from pooch import HTTPDownloader

    have = _size(part)
    asked = {"User-Agent": f"mapmrf/{__version__}", "Accept-Encoding": "identity"}
    if have:
        asked["Range"] = f"bytes={have}-"
    with open(part, "ab") as file:
        bar = _DownloadBar(have, listener)

        def begin(answer: Any, *args: Any, **kwargs: Any) -> None:
            """Check whether the server sends the rest or the whole file: pooch itself does not resume."""
            if not answer.ok:
                answer.close()
            elif answer.status_code != 206:
                bar.begin = file.truncate(0)
            elif f" {have}-" not in answer.headers.get("Content-Range", ""):
                file.truncate(0)
                raise OSError("the server sent a different range than requested")

        options: dict[str, Any] = {"timeout": 30.0, "headers": asked, "hooks": {"response": begin}}
        HTTPDownloader(progressbar=bar, chunk_size=1 << 14, **options)(url, file, None)


class _DownloadBar:
    """The progress bar that pooch updates: calls a listener with the size so far."""

    def __init__(self, begin: int, listener: Callable[[int, int | None], None]) -> None:
        self.begin, self.listener = begin, listener
        self.total = self.done = 0  # pooch sets the total from the header, 0 if there is none

    def update(self, size: int) -> None:
        """Count bytes: pooch always reports a full chunk."""
        self.done = min(self.done + size, self.total) if self.total else self.done + size
        self.listener(self.begin + self.done, self.begin + self.total if self.total else None)

    def reset(self) -> None:
        """Reset the count, as pooch does before its last update."""
        self.done = 0

    def close(self) -> None:
        """Do nothing."""


def _place(entry: Entry, target: Path, part: Path) -> None:
    """Rename a complete file to its final name if it is the model."""
    try:
        content = read_bytes(part)
    except FormatError as error:
        raise WrongContent(str(error).partition(": ")[2]) from None
    if not matches(entry, content):
        raise WrongContent("wrong checksum, differs from the catalogue")
    if entry.sha256 is None and not content.lstrip().startswith((b"MARKOV", b"BAYES")):
        raise WrongContent("not a UAI model")
    os.replace(part, target)


def _files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Base name and content of all files in a tar or zip archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                if not member.is_dir():
                    with opened.open(member) as file:
                        yield PurePosixPath(member.filename).name, file
    else:
        with tarfile.open(archive) as tar:
            for info in tar:
                content = tar.extractfile(info) if info.isfile() else None
                if content is not None:
                    yield PurePosixPath(info.name).name, content


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
