"""Certificates: dual points that prove a bound, and a checker that shares no code with the solvers."""

from mapmrf.certificates.certificate import CaseTree, Certificate, Cycles, InvalidCertificate
from mapmrf.certificates.check import Verification, verify

__all__ = ["CaseTree", "Certificate", "Cycles", "InvalidCertificate", "Verification", "verify"]
