"""The exception for invalid certificates."""

from __future__ import annotations

from mapmrf.errors import MapMRFError


class InvalidCertificate(MapMRFError, ValueError):
    """A certificate is not a proof: it is malformed, belongs to another model, or does not prove its claim.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.certificates import Certificate, verify
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> verify(graph, [1, 1], Certificate(bound=1.5))
    Traceback (most recent call last):
        ...
    mapmrf.certificates.invalid.InvalidCertificate: the claimed bound is 1.5, but the certificate proves 2.0
    """
