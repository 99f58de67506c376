"""Fetching the models of the catalogue: resumable, checked, and in place only when whole and right.

What has arrived of a file stands beside its place as ``.part`` until it is whole, and has the checksum that the
catalogue knows of its uncompressed content. Only the standard library is used.
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
from email.message import Message
from functools import partial
from http.client import HTTPException
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from mapmrf._version import __version__
from mapmrf.datasets.catalogue import SUFFIXES, Entry, locate, matches, plain_file, verify
from mapmrf.errors import FormatError, MapMRFError, OptionError
from mapmrf.formats.files import compression, read_bytes

ATTEMPTS = 4
"""Tries in a row that bring nothing before a file is given up."""

PAUSE = 1.0
"""Seconds before the second try; doubled before every further one."""

TIMEOUT = 30.0
"""Seconds that a server may be silent."""

CHUNK = 1 << 16
_ARCHIVES = (".tgz", ".tar.gz", ".zip")
_PASSING = (408, 429, 500, 502, 503, 504)
_NOT_THERE = (404, 410)
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error, LZMAError)

Listener = Callable[[str, int, int | None], None]
"""Is told the name of a file, the bytes that are there, and their number in the end if that is known."""


class DownloadError(MapMRFError):
    """A file could not be fetched; others may be."""


class NotThere(DownloadError):
    """The server does not have the file."""


class Stopped(DownloadError):
    """Going on is of no use: the server does not answer, or nothing can be written."""


class WrongContent(DownloadError):
    """What arrived is not what the catalogue says."""


@dataclass
class Report:
    """What came of a download.

    Attributes
    ----------
    fetched, present
        Models that were fetched, and those that were there before.
    by_hand
        Models whose public address is not known, or whose archive does not hold them.
    failed
        What went wrong with the others, by model.
    """

    fetched: list[Entry] = field(default_factory=list)
    present: list[Entry] = field(default_factory=list)
    by_hand: list[Entry] = field(default_factory=list)
    failed: dict[Entry, str] = field(default_factory=dict)


def download(
    wanted: Iterable[Entry],
    folder: str | os.PathLike[str],
    *,
    source: str | None = None,
    listener: Listener | None = None,
) -> Report:
    """Fetch the models that are not in a data folder yet.

    Parameters
    ----------
    wanted
        The models.
    folder
        The data folder; it is made if need be.
    source
        Base address of a mirror that has the files under their places in a data folder, compressed or not. By
        default every model is fetched from its own public address.
    listener
        Is told how far a file has come.

    Raises
    ------
    Stopped
        If a server does not answer or the folder cannot be written; what has arrived is continued by the next call.
    """
    if source is not None and urlsplit(source).scheme not in ("http", "https"):
        raise OptionError(f"source is {source!r}, expected an http or https address")
    report = Report()
    run = _Run(Path(folder), listener or (lambda name, done, total: None), report)
    by_archive: dict[str, list[Entry]] = {}
    for entry in wanted:
        if run.is_there(entry):
            continue
        if source is not None:
            run.single(entry, _mirrored(source, entry))
        elif entry.url.endswith(_ARCHIVES):
            by_archive.setdefault(entry.url, []).append(entry)
        elif entry.url:
            run.single(entry, [entry.url])
        else:
            report.by_hand.append(entry)
    for url, members in by_archive.items():
        run.archive(url, members)
    return report


def _mirrored(source: str, entry: Entry) -> list[str]:
    """Addresses that a mirror may have a model under."""
    return [f"{source.rstrip('/')}/{quote(plain_file(entry))}{suffix}" for suffix in SUFFIXES]


@dataclass(frozen=True)
class _Run:
    """One call of `download`."""

    folder: Path
    listener: Listener
    report: Report

    def is_there(self, entry: Entry) -> bool:
        """Whether the file of an entry is there; one with other content is left alone, and reported."""
        path = locate(entry, self.folder)
        if path is None:
            return False
        if verify(entry, path) is False:
            self.report.failed[entry] = f"{path}: is not the model of the catalogue (checksum); remove it to fetch it"
        else:
            self.report.present.append(entry)
        return True

    def single(self, entry: Entry, urls: list[str]) -> None:
        """Fetch a model from the first address that has it."""
        try:
            self._first(entry, urls)
            self.report.fetched.append(entry)
        except Stopped:
            raise
        except DownloadError as error:
            self.report.failed[entry] = str(error)

    def _first(self, entry: Entry, urls: list[str]) -> None:
        missing = []
        for url in urls:
            target = self._target(entry, url)
            try:
                return self._whole(url, target, entry.sha256 is not None, partial(_place, entry, target))
            except NotThere as error:
                missing.append(error)
        raise missing[0]

    def archive(self, url: str, members: list[Entry]) -> None:
        """Fetch an archive, take the models wanted out of it, and throw it away."""
        target = (self.folder / members[0].file).with_name(PurePosixPath(url).name)
        try:
            self._whole(url, target, True, lambda part: self._unpack(part, members))
            _part(target).unlink()
        except Stopped:
            raise
        except DownloadError as error:
            left = [entry for entry in members if entry not in self.report.fetched]
            self.report.failed.update(dict.fromkeys(left, str(error)))

    def _unpack(self, part: Path, members: list[Entry]) -> None:
        """Place the models that an archive holds; those that a damaged one gave before are not placed again."""
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

    def _whole(self, url: str, target: Path, resumable: bool, use: Callable[[Path], None]) -> None:
        """Fetch a file and use it; what was begun before is thrown away if the whole turns out wrong."""
        part = _part(target)
        _make_folder(part.parent)
        if not resumable:  # nothing would tell whether old and new pieces belong together
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
    """Fetch an address into a file, behind what is there of it already; try again what fails in passing.

    Raises
    ------
    NotThere
        If the server does not have it.
    Stopped
        If `ATTEMPTS` tries in a row brought nothing.
    DownloadError
        If the server refuses, or the disk does.
    """
    tries = 0
    while True:
        before = _size(part)
        reason = _try(url, part, listener)
        if not reason:
            return
        tries = 1 if _size(part) > before else tries + 1
        if tries >= ATTEMPTS:
            raise Stopped(f"{url}: {reason}")
        time.sleep(PAUSE * 2 ** (tries - 1))


def _try(url: str, part: Path, listener: Callable[[int, int | None], None]) -> str:
    """Fetch once; return why the rest is missing, or nothing if it is whole."""
    try:
        return _transfer(url, part, listener)
    except HTTPError as error:
        with error:
            said = f"{error.code} {error.reason}"
            if error.code == 416 and _size(part):
                return _beyond(part, error.headers)
        if error.code in _PASSING:
            return said
        raise (NotThere if error.code in _NOT_THERE else DownloadError)(f"{url}: {said}") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__


def _beyond(part: Path, headers: Message) -> str:
    """Answer to «nothing follows what you have»: it is whole, or no part of this file."""
    if headers.get("Content-Range", "").rpartition("/")[2] == str(_size(part)):
        return ""
    part.unlink()
    return "what was begun is not part of the file"


def _transfer(url: str, part: Path, listener: Callable[[int, int | None], None]) -> str:
    have = _size(part)
    asked = {"User-Agent": f"mapmrf/{__version__}", "Accept-Encoding": "identity"}
    if have:
        asked["Range"] = f"bytes={have}-"
    with urlopen(Request(url, headers=asked), timeout=TIMEOUT) as answer:
        begin = _begin(answer.headers) if answer.status == 206 else 0
        if begin not in (0, have):
            part.unlink()
            return "the server sent another part than asked for"
        length = answer.headers.get("Content-Length")
        total = None if length is None else begin + int(length)
        done = begin
        with open(part, "ab" if begin else "wb") as file:
            # What has come is taken at once: it must not be lost, nor its news be late, because the rest is slow.
            while done != total and (block := answer.read1(CHUNK)):
                file.write(block)
                done += len(block)
                listener(done, total)
    return "" if total in (None, done) else "the connection was cut"


def _begin(headers: Message) -> int:
    """First place of a partial answer, such as ``bytes 100-199/200``; -1 if it says nothing."""
    first = headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdigit() else -1


def _place(entry: Entry, target: Path, part: Path) -> None:
    """Give a whole file its name if it is the model."""
    try:
        content = read_bytes(part)
    except FormatError as error:
        raise WrongContent(str(error).partition(": ")[2]) from None
    if not matches(entry, content):
        raise WrongContent("wrong checksum, not the model of the catalogue")
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


def _make_folder(folder: Path) -> None:
    """Make a folder to write to, and find out now whether one may."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Stopped(f"{folder}: cannot make the folder: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise Stopped(f"{folder}: no permission to write")
