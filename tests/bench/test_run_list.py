"""Plans: which runs there are, and when two are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mapmrf
from mapmrf import OptionError
from mapmrf.bench.run_list import MethodConfig, ModelRef, RunList, from_files, of_set, read_plan
from mapmrf.datasets import entries, grid
from refusals import refuses

MODELS = [ModelRef("own", "a", "/x/a.uai"), ModelRef("own", "b", "/x/b.uai")]


def test_every_run_on_every_model_with_every_seed_once() -> None:
    plan = RunList([MethodConfig("icm"), MethodConfig("icm", {"starts": 3}), MethodConfig("icm")], MODELS, seeds=(0, 1))
    tasks = plan.tasks()
    assert len(tasks) == 2 * 2 * 2 == len({task.key for task in tasks})
    assert [task.model.name for task in tasks] == ["a"] * 4 + ["b"] * 4
    assert {task.run.name for task in tasks} == {"icm", "icm starts=3"}


def test_the_key_depends_on_the_run_and_not_on_the_folder() -> None:
    def key(path: str = "/x/a.uai", seed: int = 0, limit: float = 1.0, digest: str = "", **options: object) -> str:
        model = ModelRef("own", "a", path, digest=digest)
        return RunList([MethodConfig("icm", options)], [model], [seed], limit).tasks()[0].key

    assert key() == key(path="/elsewhere/a.uai")
    assert key(digest="12") == key(path="/elsewhere/a.uai.gz", digest="12")
    others = [key(seed=1), key(limit=2.0), key(starts=2), key(digest="12"), key(path="/x/a.uai.gz")]
    assert len({key(), *others}) == 6


def test_a_plan_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'sets = ["grids"]\nseeds = [0, 1]\ntime_limit = 5\nmethods = ["icm"]\n'
        '[[run]]\nmethod = "lslp"\nname = "as printed"\noptions = { preset = "paper", rho = 0.5 }\n'
    )
    plan = read_plan(path)
    assert plan["run"] == [MethodConfig("lslp", {"preset": "paper", "rho": 0.5}, "as printed")]
    assert (plan["sets"], plan["seeds"], plan["time_limit"], plan["methods"]) == (["grids"], [0, 1], 5, ["icm"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sets = [", "plan.toml: "),
        ("set = []", "found 'set', expected one of methods"),
        ("sets = 'grids'", "sets is 'grids', expected a list of str"),
        ("seeds = [0.5]", r"seeds is \[0.5\], expected a list of int"),
        ("time_limit = 'long'", "time_limit is 'long'"),
        ("[[run]]\nmethods = 'icm'", "a run is .*, expected method"),
        ("[[run]]\nmethod = 'icm'\noptions = { start = 1 }", "did you mean 'starts'"),
    ],
)
def test_a_bad_plan_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(OptionError, match=message) as error:
        read_plan(path)
    assert "\n" not in str(error.value)


def test_own_files_are_known_by_their_content_and_clashing_names_get_their_folder(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "m.uai", tmp_path / "b" / "m.uai", tmp_path / "a" / "some.f10.uai.gz"]
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(number))
    models = from_files(paths)
    assert [model.name for model in models] == ["a/m.uai", "b/m.uai", "some.f10"]
    assert len({model.identity for model in models}) == 3
    paths[2].write_text("changed")
    assert from_files(paths)[2].identity != models[2].identity
    refuses(OptionError, r"none\.uai: no such file", from_files, [tmp_path / "none.uai"])


PLAN = {"runs": [MethodConfig("icm")], "models": MODELS}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RunList(**PLAN | {"seeds": (-1,)}), "a seed is -1"),
        (lambda: RunList(**PLAN | {"seeds": (True,)}), "a seed is True"),
        (lambda: RunList(**PLAN | {"time_limit": float("nan")}), "time_limit is nan"),
        (lambda: RunList(**PLAN | {"time_limit": -1.0}), "time_limit is -1"),
        (
            lambda: RunList(**PLAN | {"runs": [MethodConfig("icm", {}, "x"), MethodConfig("lp", {}, "x")]}),
            "two different runs are named 'x'",
        ),
        (lambda: MethodConfig(*("lslp", {"rho": "a"})), "lslp: rho is .a., expected a number"),
        (lambda: MethodConfig(*("icm", {"start": 3})), "did you mean 'starts'"),
        (lambda: MethodConfig(*("peer:nobody",)), "no peer is named 'nobody'"),
        (lambda: MethodConfig(*("peer:cpsat", {"x": 1})), "has no options"),
    ],
)
def test_an_impossible_plan_or_run_is_refused(make: Callable[[], object], message: str) -> None:
    refuses(OptionError, message, make)


def test_a_file_that_is_not_the_catalogues_is_a_model_of_its_own(tmp_path, caplog) -> None:
    folder = tmp_path / "grids"
    folder.mkdir()
    mapmrf.write(grid(2, 2), folder / "grid20x20.f10.uai")
    mapmrf.write(grid(2, 3), folder / "grid80x80.f5.uai")  # the catalogue has no checksum of this one
    wrong, unknown = of_set("grids", tmp_path)
    assert (wrong.checksum, wrong.best, wrong.index) == ("differs", None, "M1")
    assert "grid20x20.f10.uai: differs from the catalogue" in caplog.text
    assert (unknown.checksum, unknown.digest) == ("unknown", "")
    right = entries("grids")[0].sha256
    assert right is not None and right not in wrong.identity
    assert RunList([MethodConfig("icm")], [wrong]).tasks()[0].fields()["checksum"] == "differs"
