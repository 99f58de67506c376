"""PyTorch layers whose output is a MAP labelling, with a gradient; needs the extra ``torch``.

PyTorch is not imported before a layer is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mapmrf.torch.layers import LayerSmoothing as LayerSmoothing
    from mapmrf.torch.layers import MapLayer as MapLayer
    from mapmrf.torch.layers import PerturbedLoss as PerturbedLoss

__all__ = ["LayerSmoothing", "MapLayer", "PerturbedLoss"]


def __getattr__(name: str) -> Any:
    """Import PyTorch when a layer is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'mapmrf.torch' has no attribute {name!r}")
    return getattr(importlib.import_module("mapmrf.torch.layers"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
