import io

import numpy as np
from matplotlib.image import imread

from mapmrf.plots import style


def test_a_reader_gets_back_every_pixel(tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    style.write(tmp_path / "p.png", picture)
    np.testing.assert_array_equal((imread(tmp_path / "p.png") * 255).round().astype(np.uint8), picture)
    assert imread(io.BytesIO(style.encode(picture))).shape == (7, 5, 3)


def test_colours_differ_and_are_cut_at_the_ends():
    shades = style.colours(np.arange(8), 8)
    assert len(np.unique(shades, axis=0)) == 8
    np.testing.assert_array_equal(style.colours([-3.0, 99.0], 8), shades[[0, 7]])
    np.testing.assert_array_equal(style.colours([0], 1), shades[:1])


def test_panels_hold_the_enlarged_pictures():
    picture = style.colours(np.arange(40).reshape(4, 10), 40)
    sheet = style.panels({"a": picture, "b": picture}, scale=3, margin=6)
    top = sheet.shape[0] - 6 - 12
    assert sheet.shape[1] == 6 + 30 + 6 + 30 + 6
    np.testing.assert_array_equal(sheet[top : top + 12 : 3, 6:36:3], picture)
    np.testing.assert_array_equal(sheet[top : top + 12 : 3, 42:72:3], picture)
    assert (sheet[top:, [0, 5, 36, 41, 72, 77]] == 255).all()


def test_captions_stand_above_their_pictures():
    picture = style.colours(np.zeros((2, 20)), 2)
    sheet = style.panels({"LS-LP 2": picture, " ": picture}, scale=4, margin=8)
    head = sheet[: sheet.shape[0] - 8 - 8]
    ink = np.flatnonzero((head != 255).any(axis=(0, 2)))
    assert ink.min() >= 8 and ink.max() < 88  # nothing above the second picture
    assert abs((ink.min() + ink.max()) / 2 - 48) < 3  # centred
    assert (head[:8] == 255).all()
