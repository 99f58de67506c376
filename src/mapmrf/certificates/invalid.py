"""What a certificate that is none raises."""

from __future__ import annotations

from mapmrf.errors import MapMRFError


class InvalidCertificate(MapMRFError, ValueError):
    """A certificate is no proof: it is malformed, belongs to another model, or does not prove what it claims.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.certificates import Certificate, verify
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> verify(graph, [1, 1], Certificate(bound=1.5))
    Traceback (most recent call last):
        ...
    mapmrf.certificates.invalid.InvalidCertificate: the bound claimed is 1.5, but 2.0 is what the certificate proves
    """
