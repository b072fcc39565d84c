"""Checks zerogap's promises on the user's model and machine, before a run.

Each check is a function of its subjects (an engine, a trainer, a digest, an exporter), so a test can pass a faulty
subject and see the check fail. ``certify`` builds the subjects as a run does and makes all checks.
"""

from zerogap.certify.certify import Certificate, certify
from zerogap.certify.finding import Finding, Verdict
from zerogap.certify.fingerprints import check_fingerprints
from zerogap.certify.gradient import check_gradient
from zerogap.certify.identity import check_identity
from zerogap.certify.learning import check_optimizer, check_resume, check_trained_export
from zerogap.certify.round_trips import ModelFolder, check_round_trips
from zerogap.certify.rows import Reported, check_rows
from zerogap.certify.subjects import Subjects
from zerogap.certify.versions import check_versions

__all__ = [
    "Certificate",
    "Finding",
    "ModelFolder",
    "Reported",
    "Subjects",
    "Verdict",
    "certify",
    "check_fingerprints",
    "check_gradient",
    "check_identity",
    "check_optimizer",
    "check_resume",
    "check_round_trips",
    "check_rows",
    "check_trained_export",
    "check_versions",
]
