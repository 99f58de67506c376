"""Make pictures of the documentation: ``python docs/pictures/make.py [NAME]...``, all of them by default.

Those of the pages "Pictures" and "LS-LP" are drawn here, those of photographs and volumes by the scripts in `examples`,
which take up to half a minute each.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import mapmrf
from mapmrf import plots
from mapmrf.datasets import grid, potts_image
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
DOTS, FEWER = 100, {"primal": 60}
"""Dots per inch: sharp on a screen, and fewer where a file would exceed 100 kB."""


def spin_glass() -> mapmrf.FactorGraph:
    """A lattice whose relaxation is far from integer."""
    return grid(20, 20, coupling=2.0, seed=1)


def three_states(height: int = 24, width: int = 32) -> mapmrf.FactorGraph:
    """A lattice with random tables: its relaxed solution has variables of every kind."""
    rng = np.random.default_rng(1)
    at = np.arange(height * width).reshape(height, width)
    across = np.stack([at[:, :-1], at[:, 1:]], axis=-1).reshape(-1, 2)
    down = np.stack([at[:-1], at[1:]], axis=-1).reshape(-1, 2)
    edges = np.concatenate([across, down])
    unary = rng.normal(size=(height * width, 3))
    return mapmrf.FactorGraph.from_pairwise(unary, edges, rng.normal(scale=0.8, size=(len(edges), 3, 3)))


def garden() -> mapmrf.FactorGraph:
    """A Bayesian network with names: what makes grass wet, and who finds out."""
    names = ("Season", "Rain", "Sprinkler", "Grass", "Shoes", "Snail")
    states = (("dry", "rainy"), ("no", "yes"), ("off", "on"), ("dry", "wet"), ("clean", "wet"), ("hidden", "out"))
    season = [0.6, 0.4]
    rain = [[0.9, 0.1], [0.3, 0.7]]
    sprinkler = [[0.4, 0.6], [0.95, 0.05]]
    grass = [[[1.0, 0.0], [0.1, 0.9]], [[0.2, 0.8], [0.01, 0.99]]]
    shoes = [[0.95, 0.05], [0.2, 0.8]]
    snail = [[[0.9, 0.1], [0.6, 0.4]], [[0.5, 0.5], [0.1, 0.9]]]
    scopes = [(0,), (0, 1), (0, 2), (1, 2, 3), (3, 4), (1, 3, 5)]
    with np.errstate(divide="ignore"):
        tables = [np.log(table) for table in (season, rain, sprinkler, grass, shoes, snail)]
    return mapmrf.FactorGraph.from_tables([2] * 6, scopes, tables, names=mapmrf.Names(names, states))


def convergence() -> Figure:
    """LS-LP on a spin glass."""
    return plots.convergence(mapmrf.solve(spin_glass(), "lslp"))


def compare() -> Figure:
    """Five methods on one model; each is run twice, so that the time of loading kernels is not in the picture."""
    graph = spin_glass()
    for warm in (True, False):
        results = [mapmrf.solve(graph, name, time_limit=20) for name in ("icm", "trws", "lslp", "mplp_c", "branch")]
        if not warm:
            break
    return plots.compare(results, title="20 x 20 spin glass")


def labels() -> Figure:
    """A segmentation."""
    image = potts_image(72, 96, 5, noise=0.9, seed=3)
    return plots.label_map(mapmrf.solve(image.graph, "trws"), shape=(72, 96), title="trws")


def overlay() -> Figure:
    """The same over the picture that it explains, with names."""
    image = potts_image(72, 96, 5, noise=0.9, seed=3)
    names = ["sky", "water", "grass", "sand", "snow"]
    return plots.label_map(mapmrf.solve(image.graph, "trws"), shape=(72, 96), image=image.observed, names=names)


def graph() -> Figure:
    """A Bayesian network with its most probable state, given that the shoes are wet."""
    model = garden()
    return plots.factor_graph(model, labels=mapmrf.solve(model.condition({"Shoes": "wet"}), "exhaustive"))


def lattice() -> Figure:
    """A small torus."""
    model = grid(4, 6, coupling=2.0, wrap=True, seed=1)
    return plots.factor_graph(model, labels=mapmrf.solve(model, "branch"))


def primal() -> Figure:
    """A model that is too large for names and squares."""
    return plots.factor_graph(mapmrf.datasets.lookalike("scene", 1))


def kinds() -> Figure:
    """Where the linear relaxation of a lattice is not integer."""
    model = three_states()
    return plots.kinds(mapmrf.solve(model, "lp"), model)


def kinds_bar() -> Figure:
    """The same without the model: fractions alone."""
    return plots.kinds(mapmrf.solve(three_states(), "lp"))


def margins() -> Figure:
    """How sure the labels of a segmentation are."""
    image = potts_image(72, 96, 5, noise=0.9, seed=3)
    return plots.margins(mapmrf.solve(image.graph, margins=True), image.graph, title="margin of each pixel")


def flipping() -> Figure:
    """The copy on the sphere of one variable of LS-LP, on a sparse graph and on two dense ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for place, degree in zip(figure.subplots(1, 3, sharey=True), (4, 20, 199), strict=True):
        rng = np.random.default_rng(0)
        pairs = np.stack(np.triu_indices(200, 1), axis=1)
        pairs = pairs[rng.choice(len(pairs), 100 * degree, replace=False)]
        model = mapmrf.FactorGraph.from_pairwise(rng.normal(size=(200, 2)), pairs, rng.normal(size=(len(pairs), 2, 2)))
        method = mapmrf.LSLP(lp_phase=False, starts=1, climb=False)
        engine = method.start(Problem.compile(model), 0, Start()).the_engine
        copies, means = [], []
        for _ in range(60):
            scale = np.sqrt(engine.sphere.target2.sum() / engine.sphere.norm2.sum())
            copies.append(0.5 + 0.5 * scale * (engine.mu[0] + engine.lam_v[0] / engine.rho))
            means.append(0.5 + 0.5 * engine.mu[0])
            engine.run(1)
        place.plot(
            copies, ".-", color="#d55e00", linewidth=0.6, markersize=4, label=r"copy on the sphere, $\upsilon_i(1)$"
        )
        place.plot(means, color="#0072b2", label=r"$\mu_i(1)$")
        place.axhline(0.5, color="0.7", linewidth=0.8, zorder=0)
        place.set(title=f"degree {degree}", xlabel="iteration", ylim=(-0.2, 1.3))
    figure.axes[0].legend(loc="lower right", fontsize="small")
    return figure


MAKERS: dict[str, Callable[[], Figure]] = {
    "convergence": convergence,
    "compare": compare,
    "labels": labels,
    "overlay": overlay,
    "graph": graph,
    "lattice": lattice,
    "primal": primal,
    "kinds": kinds,
    "kinds-bar": kinds_bar,
    "margins": margins,
    "flipping": flipping,
}


EXAMPLES = ("segmentation", "coins", "denoising", "inpainting", "stereo", "volume")
"""Scripts that draw a picture of their own name."""


def draw(name: str) -> None:
    """Draw a plot, or run an example."""
    if name in EXAMPLES:
        script = FOLDER.parents[1] / "examples" / f"{name}.py"
        subprocess.run([sys.executable, str(script), "--output", str(FOLDER / f"{name}.webp")], check=True)
    else:
        MAKERS[name]().savefig(FOLDER / f"plot-{name}.png", dpi=FEWER.get(name, DOTS))


if __name__ == "__main__":
    for name in sys.argv[1:] or [*MAKERS, *EXAMPLES]:
        draw(name)
