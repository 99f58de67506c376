"""How a MAP layer gets a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.errors import OptionError

Mode = Literal["perturbed", "imle", "sparsemap", "local"]


@dataclass(frozen=True)
class LayerSmoothing:
    """The differentiable output of a MAP layer in place of a labelling, and the way to compute its gradient.

    Attributes
    ----------
    mode
        ``"perturbed"``: the mean over models with Gaussian noise, whose Jacobian is estimated from the same models
        (Berthet et al., 2020). ``"imle"``: the mean over models with Gumbel noise, a labelling if `samples` is 1; the
        gradient is the difference to the models whose potentials were moved against the incoming gradient (Niepert et
        al., 2021). ``"sparsemap"``: the solution of a quadratic program over the convex hull of the labellings, with
        its own Jacobian (Niculae et al., 2018); nothing is random. ``"local"``: the same program over the local
        polytope, by ADMM, without inference (LP-SparseMAP; Niculae and Martins, 2020).
    samples, sigma
        Number of perturbed models, and the scale of the noise.
    strength
        How far ``"imle"`` moves the potentials against the gradient.
    seed
        Seed of the noise and of inference.
    redraw
        Whether the noise is redrawn in each call, or the same in all.

    Examples
    --------
    >>> from mapmrf.torch.smoothing import LayerSmoothing
    >>> LayerSmoothing("imle", samples=2).noise((1, 3), call=0).shape
    (2, 1, 3)
    """

    mode: Mode = "perturbed"
    samples: int = 8
    sigma: float = 1.0
    strength: float = 1.0
    seed: int = 0
    redraw: bool = True

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise OptionError(f"mode is {self.mode!r}, expected one of {', '.join(get_args(Mode))}")
        if self.samples < 1:
            raise OptionError(f"samples is {self.samples}, expected at least 1")
        if not (self.sigma > 0 and self.strength > 0):
            raise OptionError(f"sigma is {self.sigma} and strength {self.strength}, expected numbers above 0")

    def noise(self, shape: tuple[int, ...], call: int) -> Floats:
        """The noise of a call: (samples, *shape).

        Examples
        --------
        >>> from mapmrf.torch.smoothing import LayerSmoothing
        >>> fixed = LayerSmoothing(redraw=False)
        >>> bool((fixed.noise((1, 2), call=1) == fixed.noise((1, 2), call=2)).all())
        True
        """
        random = np.random.default_rng([self.seed, call if self.redraw else 0])
        size = (self.samples, *shape)
        drawn = random.normal(size=size) if self.mode == "perturbed" else random.gumbel(-np.euler_gamma, size=size)
        return np.asarray(drawn)
