"""Creation of certificates: a dual point of the whole model, and a tree of cases if that leaves a gap."""

from mapmrf.certificates.make.prove import certify as certify
from mapmrf.certificates.make.prove import with_certificate as with_certificate
