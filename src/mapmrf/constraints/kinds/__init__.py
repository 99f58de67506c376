"""The kinds of constraints, by number."""

from __future__ import annotations

from mapmrf.constraints.flat import KindInterface
from mapmrf.constraints.kinds.all_different import AllDifferent
from mapmrf.constraints.kinds.linear import Linear
from mapmrf.constraints.kinds.or_output import OrOutput
from mapmrf.constraints.kinds.parity import Parity
from mapmrf.constraints.kinds.regular import Regular

KINDS: tuple[KindInterface, ...] = (Linear(), Parity(), OrOutput(), AllDifferent(), Regular())
