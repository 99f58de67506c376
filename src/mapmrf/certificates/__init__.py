"""Certificates: dual points that prove a bound, and a checker that shares no code with the solvers."""

from mapmrf.certificates.certificate import CaseTree as CaseTree
from mapmrf.certificates.certificate import Certificate as Certificate
from mapmrf.certificates.certificate import Cycles as Cycles
from mapmrf.certificates.certificate import InvalidCertificate as InvalidCertificate
from mapmrf.certificates.check import Verification as Verification
from mapmrf.certificates.check import verify as verify
