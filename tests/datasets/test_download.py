"""Downloads are whole, right and resumable, or are not there at all."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import random
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import mapmrf.datasets.download as module
from mapmrf import OptionError
from mapmrf.datasets import Entry, entries
from mapmrf.datasets.download import DownloadReport, DownloadStopped, download
from refusals import refuses

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
CONTENT = {name: f"MARKOV 1 2 1 1 0 2 {name}\n".encode() * 15_000 for name in ("one", "two")}


@dataclass
class Site:
    """A server that misbehaves as told."""

    files: dict[str, bytes] = field(default_factory=dict)  # what it has, by path
    ranges: bool = True  # whether it answers requests for a part
    cut: list[int] = field(default_factory=list)  # bytes after which the next answers break off
    trouble: list[int] = field(default_factory=list)  # status codes of the next answers
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and range of all requests
    url: str = ""


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.asked.append((self.path, wanted))
            content = site.files.get(self.path)
            if site.trouble:
                self.send_error(site.trouble.pop(0))
            elif content is None:
                self.send_error(404)
            else:
                self.answer(content, int(wanted[6:-1]) if wanted and site.ranges else None)

        def answer(self, content: bytes, begin: int | None) -> None:
            if begin is not None and begin >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200 if begin is None else 206)
            if begin is not None:
                self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
            body = content[begin or 0 :]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: site.cut.pop(0)] if site.cut else body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    site = Site()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(site)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        site.url = f"http://127.0.0.1:{server.server_port}"
        yield site
        server.shutdown()
        thread.join()


def entry(name: str = "one", url: str = "", known: bool = True) -> Entry:
    digest = hashlib.sha256(CONTENT[name]).hexdigest() if known else None
    return replace(entries("grids")[0], name=name, file=f"grids/{name}.uai.gz", sha256=digest, url=url)


def there(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(report: DownloadReport) -> str:
    """Why the only model was not fetched, in one line."""
    assert not report.fetched
    (text,) = report.failed.values()
    assert "\n" not in text
    return text


# -- all goes well ---------------------------------------------------------------------------------------------------


def test_a_model_is_fetched_from_its_own_address(site: Site, tmp_path: Path) -> None:
    site.files["/some/where/one.uai"] = CONTENT["one"]
    seen: list[tuple[str, int, int | None]] = []
    wanted = entry(url=f"{site.url}/some/where/one.uai")
    report = download([wanted], tmp_path / "new" / "data", listener=lambda *told: seen.append(told))
    assert report == DownloadReport(fetched=[wanted])
    assert there(tmp_path) == {"new/data/grids/one.uai": CONTENT["one"]}
    size = len(CONTENT["one"])
    assert seen[-1] == ("one.uai", size, size)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert download([wanted], tmp_path / "new" / "data") == DownloadReport(present=[wanted])
    assert len(site.asked) == 1


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_mirror_may_compress_as_it_likes(suffix: str, slash: str, site: Site, tmp_path: Path) -> None:
    site.files[f"/mirror/grids/one.uai{suffix}"] = COMPRESS[suffix](CONTENT["one"])
    wanted = entry(url="http://nowhere.invalid/one.uai")
    assert download([wanted], tmp_path, source=f"{site.url}/mirror{slash}").fetched == [wanted]
    assert list(there(tmp_path)) == [f"grids/one.uai{suffix}"]


@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_models_are_taken_out_of_an_archive(kind: str, site: Site, tmp_path: Path) -> None:
    inside = {"Grids/one.uai": CONTENT["one"], "Grids/deep/two.uai.gz": gzip.compress(CONTENT["two"]), "x.txt": b"x"}
    site.files[f"/Grids.{kind}"] = (tar if kind == "tgz" else zipped)(inside)
    url = f"{site.url}/Grids.{kind}"
    absent = replace(entry("one", url), name="three", file="grids/three.uai.gz")
    report = download([entry("one", url), entry("two", url), absent], tmp_path)
    assert report == DownloadReport(fetched=[entry("one", url), entry("two", url)], by_hand=[absent])
    assert there(tmp_path) == {"grids/one.uai": CONTENT["one"], "grids/two.uai.gz": inside["Grids/deep/two.uai.gz"]}
    assert len(site.asked) == 1


def tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.mkdir("Grids")
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_a_model_without_an_address_is_left_to_the_hand(tmp_path: Path) -> None:
    assert download([entry()], tmp_path) == DownloadReport(by_hand=[entry()])
    assert there(tmp_path) == {}


def test_a_model_without_a_checksum_is_taken_if_it_is_one(site: Site, tmp_path: Path) -> None:
    site.files["/grids/one.uai.gz"] = gzip.compress(CONTENT["one"])
    wanted = entry(known=False)
    assert download([wanted], tmp_path, source=site.url).fetched == [wanted]
    site.files["/grids/two.uai.gz"] = b"<html>please log in</html>"
    assert "not a UAI model" in refused(download([entry("two", known=False)], tmp_path, source=site.url))
    assert list(there(tmp_path)) == ["grids/one.uai.gz"]


# -- connections that break ------------------------------------------------------------------------------------------


def test_a_cut_connection_is_taken_up_where_it_broke(site: Site, tmp_path: Path) -> None:
    site.files["/one.uai"] = CONTENT["one"]
    site.cut = [100_000, 50_000]
    wanted = entry(url=f"{site.url}/one.uai")
    assert download([wanted], tmp_path).fetched == [wanted]
    (_, first), (_, second), (_, third) = site.asked
    assert first is None
    assert 80_000 <= int(second[6:-1]) <= 100_000  # but for the last chunk
    assert int(second[6:-1]) + 30_000 <= int(third[6:-1]) <= 150_000
    assert there(tmp_path) == {"grids/one.uai": CONTENT["one"]}


ONE = CONTENT["one"]
BROKEN: dict[str, tuple[bytes, dict[str, Any], Any]] = {
    "a part of an earlier run is continued": (ONE[:777], {}, [("/one.uai", "bytes=777-")]),
    "a whole part needs nothing more": (ONE, {}, [("/one.uai", f"bytes={len(ONE)}-")]),
    "what is no part is thrown away": (b"something else", {}, [("/one.uai", "bytes=14-"), ("/one.uai", None)]),
    "what is too long is thrown away": (
        b"longer " * 100_000, {}, [("/one.uai", "bytes=700000-"), ("/one.uai", None)],
    ),
    "a server without ranges sends all again": (b"", {"ranges": False, "cut": [100_000]}, None),
    "slow progress is no lasting trouble": (b"", {"cut": [20_000] * (3 * module.ATTEMPTS)}, None),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_file_is_whole_in_the_end(what: str, site: Site, tmp_path: Path) -> None:
    left, manners, asked = BROKEN[what]
    site.files["/one.uai"] = ONE
    vars(site).update(manners)
    (tmp_path / "grids").mkdir()
    if left:
        (tmp_path / "grids" / "one.uai.part").write_bytes(left)
    wanted = entry(url=f"{site.url}/one.uai")
    assert download([wanted], tmp_path).fetched == [wanted]
    assert asked is None or site.asked == asked
    assert there(tmp_path) == {"grids/one.uai": ONE}


def test_nothing_old_is_continued_that_no_checksum_would_betray(site: Site, tmp_path: Path) -> None:
    site.files["/grids/one.uai"] = CONTENT["one"]
    (tmp_path / "grids").mkdir()
    (tmp_path / "grids" / "one.uai.part").write_bytes(b"MARKOV, but of another file")
    download([entry(known=False)], tmp_path, source=site.url)
    assert there(tmp_path) == {"grids/one.uai": CONTENT["one"]}


def test_passing_trouble_is_waited_out(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(module, "PAUSE", 1.0)
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    site.files["/one.uai"] = CONTENT["one"]
    site.trouble = [503, 429, 500]
    wanted = entry(url=f"{site.url}/one.uai")
    assert download([wanted], tmp_path).fetched == [wanted]
    assert pauses == [1, 2, 4]


def test_lasting_trouble_ends_the_download_in_one_line(site: Site, tmp_path: Path) -> None:
    site.files["/one.uai"] = CONTENT["one"]
    site.trouble = [503] * module.ATTEMPTS
    both = [entry(url=f"{site.url}/one.uai"), entry("two", url=f"{site.url}/two.uai")]
    refuses(DownloadStopped, r"one\.uai: 503", download, both, tmp_path)
    assert len(site.asked) == module.ATTEMPTS
    refuses(DownloadStopped, "refused", download, [entry(url="http://127.0.0.1:9/one.uai")], tmp_path)
    (tmp_path / "file").write_text("")
    refuses(DownloadStopped, "cannot create the folder", download, both, tmp_path / "file")
    site.trouble = [403]
    assert "one.uai: 403" in refused(download(both[:1], tmp_path))


def test_an_interrupted_download_keeps_what_it_has(site: Site, tmp_path: Path) -> None:
    site.files["/one.uai"] = CONTENT["one"]

    def interrupt(name: str, done: int, total: int | None) -> None:
        if done > 100_000:
            raise KeyboardInterrupt

    wanted = entry(url=f"{site.url}/one.uai")
    with pytest.raises(KeyboardInterrupt):
        download([wanted], tmp_path, listener=interrupt)
    (left,) = there(tmp_path).items()
    assert left[0] == "grids/one.uai.part"
    assert 100_000 < len(left[1]) < len(CONTENT["one"])
    assert download([wanted], tmp_path).fetched == [wanted]
    assert site.asked[-1] == ("/one.uai", f"bytes={len(left[1])}-")


# -- what is wrong ---------------------------------------------------------------------------------------------------


ARCHIVED = tar({"one.uai": CONTENT["one"]})
WRONG: list[tuple[dict[str, bytes], str, str]] = [  # what the site has, which address is asked, what is said
    ({"/grids/one.uai.gz": CONTENT["two"]}, "", "/grids/one.uai.gz: "),
    ({"/grids/one.uai.gz": gzip.compress(CONTENT["one"])[:-4]}, "", "/grids/one.uai.gz: "),
    ({}, "/one.uai", "one.uai: 404"),
    ({}, "", "one.uai.gz: 404"),
    ({"/Grids.tgz": ARCHIVED[:-100]}, "/Grids.tgz", "damaged archive"),
    ({"/Grids.tgz": b"not an archive"}, "/Grids.tgz", "damaged archive"),
    ({"/Grids.tgz": b""}, "/Grids.tgz", "damaged archive"),
]


@pytest.mark.parametrize(("files", "address", "said"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_one_line_and_gets_no_name(
    files: dict[str, bytes], address: str, said: str, site: Site, tmp_path: Path
) -> None:
    site.files = files
    asked = {"source": site.url} if address == "" else {}
    assert said in refused(download([entry(url=site.url + address if address else "")], tmp_path, **asked))
    assert there(tmp_path) == {}


@pytest.mark.parametrize("archive", [False, True])
def test_a_wrong_model_does_not_stop_the_others(archive: bool, site: Site, tmp_path: Path) -> None:
    site.files = {"/grids/one.uai": b"MARKOV 0 0", "/grids/two.uai": CONTENT["two"]}
    site.files["/Grids.tgz"] = tar({path.rpartition("/")[2]: data for path, data in site.files.items()})
    url = f"{site.url}/Grids.tgz" if archive else ""
    report = download([entry("one", url), entry("two", url)], tmp_path, **({} if archive else {"source": site.url}))
    assert report.fetched == [entry("two", url)]
    assert "one.uai: wrong checksum" in report.failed[entry("one", url)]
    assert there(tmp_path) == {"grids/two.uai": CONTENT["two"]}


def test_a_wrong_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "grids").mkdir()
    (tmp_path / "grids" / "one.uai").write_bytes(b"mine")
    assert "remove it" in refused(download([entry(url="http://nowhere.invalid/one.uai")], tmp_path))
    assert there(tmp_path) == {"grids/one.uai": b"mine"}


def test_a_damaged_archive_gives_what_it_has(site: Site, tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(300_000)
    site.files["/Grids.tgz"] = tar({"one.uai": CONTENT["one"], "noise": noise, "two.uai": CONTENT["two"]})[:-200_000]
    url = f"{site.url}/Grids.tgz"
    report = download([entry("one", url), entry("two", url)], tmp_path)
    assert report.fetched == [entry("one", url)]
    assert list(report.failed) == [entry("two", url)]
    assert there(tmp_path) == {"grids/one.uai": CONTENT["one"]}


def test_an_archive_continued_wrongly_is_fetched_anew(site: Site, tmp_path: Path) -> None:
    site.files["/Grids.tgz"] = tar({"one.uai": CONTENT["one"]})
    (tmp_path / "grids").mkdir()
    (tmp_path / "grids" / "Grids.tgz.part").write_bytes(b"no archive")
    wanted = entry(url=f"{site.url}/Grids.tgz")
    assert download([wanted], tmp_path) == DownloadReport(fetched=[wanted])
    assert [asked for _, asked in site.asked] == ["bytes=10-", None]


@pytest.mark.parametrize("source", ["ftp://host/models", "/some/folder", "host"])
def test_a_mirror_is_an_address(source: str, tmp_path: Path) -> None:
    refuses(OptionError, "expected an http or https address", download, [entry()], tmp_path, source=source)
