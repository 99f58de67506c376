import io

import numpy as np
from matplotlib.image import imread

from mapmrf import png


def test_a_reader_gets_back_every_pixel(tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    png.write(tmp_path / "p.png", picture)
    np.testing.assert_array_equal((imread(tmp_path / "p.png") * 255).round().astype(np.uint8), picture)
    assert imread(io.BytesIO(png.encode(picture))).shape == (7, 5, 3)


def test_colours_differ_and_are_cut_at_the_ends():
    shades = png.colours(np.arange(8), 8)
    assert len(np.unique(shades, axis=0)) == 8
    np.testing.assert_array_equal(png.colours([-3.0, 99.0], 8), shades[[0, 7]])
    np.testing.assert_array_equal(png.colours([0], 1), shades[:1])


def test_panels_hold_the_enlarged_pictures():
    picture = png.colours(np.arange(40).reshape(4, 10), 40)
    sheet = png.panels({"a": picture, "b": picture}, scale=3, margin=6)
    assert sheet.shape == (6 + 14 + 3 + 12 + 6, 6 + 30 + 6 + 30 + 6, 3)
    np.testing.assert_array_equal(sheet[23:35:3, 6:36:3], picture)
    np.testing.assert_array_equal(sheet[23:35:3, 42:72:3], picture)


def test_caption_is_drawn_and_cut_to_its_width():
    assert (png.caption("LS-LP 2", 120) == 60).any()
    assert png.caption("a very long caption", 20).shape == (14, 20, 3)
    assert (png.caption("?", 20) == 255).all()
