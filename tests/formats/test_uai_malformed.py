"""Malformed UAI files: one line that names the file, the place, what was found and what was expected."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import formats
from mapmrf.errors import FormatError, MapMRFError

GOOD = "MARKOV\n2\n2 3\n2\n1 0\n2 0 1\n2\n 1 2\n6\n 1 2 3 4 5 6\n"

ZOO = {
    "empty": ("", ["empty", "MARKOV or BAYES"]),
    "blank": (" \n\t\n", ["empty"]),
    "only comments": ("c nothing\n# here\n", ["empty"]),
    "another word": ("SPARSEMARKOV 2", ["line 1, token 1", "'SPARSEMARKOV'", "MARKOV or BAYES"]),
    "no numbers": ("MARKOV", ["number of variables", "ends after 1 tokens"]),
    "binary junk": ("MARKOV\x00\x01\x02\xff\n\x00", ["token 1"]),
    "junk behind the word": ("MARKOV \x00\x01\xff", ["line 1, token 2", "expected a number"]),
    "word among the numbers": (GOOD.replace("4 5", "4 five"), ["line 10, token 19", "'five'", "expected a number"]),
    "comma": (GOOD.replace("4 5", "4,5"), ["line 10, token 18", "'4,5'"]),
    "hexadecimal": (GOOD.replace("4 5", "0x4 5"), ["'0x4'"]),
    "underscore": (GOOD.replace("4 5", "4_0 5"), ["'4_0'"]),
    "half a variable": ("MARKOV 1.5 2 2 0", ["number of variables", "token 2", "'1.5'", "whole number"]),
    "negative count": ("MARKOV -1", ["number of variables", "'-1'", "at least 0"]),
    "huge count": ("MARKOV 1e300 2", ["number of variables", "'1e300'"]),
    "too many variables": ("MARKOV 1000000000000 2 2 0", ["ends after 5 tokens", "1000000000000"]),
    "no state": ("MARKOV 2 2 0 0", ["cardinality of variable 1", "token 4", "'0'", "at least 1"]),
    "cardinality nan": ("MARKOV 2 2 nan 0", ["cardinality of variable 1", "'nan'"]),
    "too many states": ("MARKOV 2 1000000000 1000000000 0", ["2000000000 states"]),
    "cut in the cardinalities": ("MARKOV 3 2 2", ["ends after 4 tokens", "3 of them"]),
    "negative number of factors": ("MARKOV 1 2 -3", ["number of factors", "token 4", "'-3'"]),
    "too many factors": ("MARKOV 1 2 99999999999 1 0 2 1 1", ["number of factors is 99999999999", "ends after 9"]),
    "arity too large": (GOOD.replace("2 0 1\n", "3 0 1\n"), ["arity of factor 1", "line 6, token 8", "'3'", "0 to 2"]),
    "arity negative": (GOOD.replace("2 0 1\n", "-2 0 1\n"), ["arity of factor 1", "'-2'"]),
    "arity huge": (GOOD.replace("2 0 1\n", "1e300 0 1\n"), ["arity of factor 1", "'1e300'"]),
    "arity nan": (GOOD.replace("2 0 1\n", "nan 0 1\n"), ["arity of factor 1", "'nan'"]),
    "arity infinite": (GOOD.replace("2 0 1\n", "inf 0 1\n"), ["arity of factor 1", "'inf'"]),
    "cut in the arities": ("MARKOV 4 2 2 2 2 3 4 0 1 2 3 4 0 1 2 3", ["arity of factor 2", "ends after 17 tokens"]),
    "arity broken": (GOOD.replace("2 0 1\n", "1.5 0 1\n"), ["arity of factor 1", "'1.5'"]),
    "cut in the scopes": ("MARKOV 3 2 2 2 1 3 0 1", ["scope of factor 0", "ends after 9 tokens", "3 variables"]),
    "variable too large": (
        GOOD.replace("2 0 1\n", "2 0 2\n"),
        ["scope of factor 1", "line 6, token 10", "'2'", "0 to 1"],
    ),
    "variable negative": (GOOD.replace("2 0 1\n", "2 -1 1\n"), ["scope of factor 1", "token 9", "'-1'"]),
    "repeated variable": (GOOD.replace("2 0 1\n", "2 1 1\n"), ["scope of factor 1", "token 10", "'1'", "already"]),
    "wrong table size": (
        GOOD.replace("6\n", "5\n", 1),
        ["table size of factor 1 (variables 0, 1)", "line 9, token 14", "'5'", "6 = 2 x 3"],
    ),
    "wrong unary size": (GOOD.replace("2\n 1 2", "3\n 1 2"), ["table size of factor 0", "'3'", "expected 2"]),
    "entry missing": (GOOD.replace("2\n 1 2\n", "2\n 1\n"), ["table size of factor 1", "'1'", "6 = 2 x 3"]),
    "cut in a table": (GOOD[:-5], ["table of factor 1", "ends after 18 tokens", "6 entries, of which 4"]),
    "cut before a table": (GOOD[: GOOD.rindex("6\n 1")], ["table of factor 1", "ends after 13 tokens", "6 entries"]),
    "more than the tables": (GOOD + "7 8\n", ["after the last table", "line 11, token 21", "'7'", "end of the file"]),
    "nan": (GOOD.replace("4 5", "4 nan"), ["factor 1 (variables 0, 1), entry 4", "line 10, token 19", "'nan'"]),
    "infinite": (GOOD.replace("4 5", "4 inf"), ["factor 1", "entry 4", "'inf'", "finite potential"]),
    "too large to be a number": (GOOD.replace("4 5", "4 1e999"), ["factor 1", "'1e999'"]),
    "negative potential": (
        GOOD.replace("1 2\n", "1 -2\n"),
        ["factor 0 (variables 0), entry 1", "'-2'", "values='log'"],
    ),
    "minus infinity": (GOOD.replace("4 5", "4 -inf"), ["factor 1", "'-inf'"]),
    "Potts among potentials": ("MARKOV 2 2 2 1 2 0 1 -1 5", ["factor 0", "token 9", "'-1'", "needs logs"]),
}


@pytest.mark.parametrize("kind", ZOO)
def test_malformed(tmp_path, error_of, kind) -> None:
    text, parts = ZOO[kind]
    path = tmp_path / "bad.uai"
    path.write_bytes(text.encode("latin-1"))
    message = error_of(path, formats.read, path)
    for part in parts:
        assert part in message, message


def test_the_good_one_is_good(tmp_path) -> None:
    path = tmp_path / "good.uai"
    path.write_text(GOOD)
    assert formats.read(path).value([1, 2]) == pytest.approx(np.log(12))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("MARKOV 1 2 1 1 0 2 0 nan", ["entry 1", "'nan'", "log potential"]),
        ("MARKOV 1 2 1 1 0 2 0 inf", ["entry 1", "'inf'"]),
        ("MARKOV 2 2 3 1 2 0 1 -1 5", ["table size of factor 0", "'-1'", "two variables with the same"]),
        ("MARKOV 1 2 1 1 0 -1 5", ["table size of factor 0", "'-1'", "two variables"]),
        ("MARKOV 2 2 2 2 1 0 2 0 1 3 -1 -1 -1 5", ["table size of factor 0", "'3'", "expected 2"]),
        ("MARKOV 2 2 2 1 2 0 1 -1", ["table of factor 0", "ends after 9 tokens"]),
    ],
)
def test_malformed_logs(tmp_path, error_of, text, parts) -> None:
    path = tmp_path / "bad.LG"
    path.write_text(text)
    message = error_of(path, formats.read, path)
    for part in parts:
        assert part in message, message


def test_malformed_costs(tmp_path, error_of) -> None:
    path = tmp_path / "bad.uai"
    path.write_text("MARKOV 1 2 1 1 0 2 0 -inf")
    assert "finite cost" in error_of(path, formats.read, path, values="cost")


@pytest.mark.parametrize("n", [70, 200, 2000])
def test_a_table_too_large_for_any_file(tmp_path, error_of, n) -> None:
    path = tmp_path / "bad.uai"
    path.write_text(f"MARKOV {n} {'2 ' * n} 1 {n} {' '.join(map(str, range(n)))} 4 1 1 1 1")
    message = error_of(path, formats.read, path)
    assert "table size of factor 0 (variables 0, 1, 2, 3, 4, 5, ...)" in message


def test_numpy_that_only_warns_about_bad_text(tmp_path, error_of, monkeypatch) -> None:
    def fromstring(text: bytes, **options: object) -> np.ndarray:
        warnings.warn("string or file could not be read to its end", DeprecationWarning, stacklevel=1)
        return np.zeros(3)

    monkeypatch.setattr("mapmrf.formats.tokens.np.fromstring", fromstring)
    path = tmp_path / "bad.uai"
    path.write_text(GOOD.replace("4 5", "4 five"))
    assert "'five'" in error_of(path, formats.read, path)


def test_every_cut_is_an_error_or_a_shorter_number(tmp_path) -> None:
    path = tmp_path / "cut.uai"
    for end in range(len(GOOD.rstrip())):
        path.write_text(GOOD[:end])
        with pytest.raises(FormatError):
            formats.read(path)


@given(data=st.binary(max_size=60), word=st.sampled_from([b"", b"MARKOV ", b"BAYES\n", b"MARKOV 2 2 2 1 "]))
def test_junk_is_an_error_of_the_family(tmp_path_factory, data: bytes, word: bytes) -> None:
    path = tmp_path_factory.mktemp("junk") / "junk.uai"
    path.write_bytes(word + data)
    try:
        formats.read(path)
    except MapMRFError as error:
        assert str(path) in str(error) and "\n" not in str(error)


@given(
    tokens=st.lists(st.sampled_from(["0", "1", "2", "3", "4", "-1", "0.5", "nan", "1e9", "inf", "1e300"]), max_size=25),
    name=st.sampled_from(["m.uai", "m.LG"]),
)
def test_random_tokens_are_an_error_or_a_model(tmp_path_factory, tokens: list[str], name: str) -> None:
    path = tmp_path_factory.mktemp("tokens") / name
    path.write_text("BAYES " + " ".join(tokens))
    try:
        graph = formats.read(path)
    except FormatError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    else:
        assert len(graph.theta_v) == graph.card.sum()
