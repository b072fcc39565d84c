"""``zerogap certify``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zerogap.errors import ConfigError

if TYPE_CHECKING:
    from zerogap.certify import Certificate
    from zerogap.config import RunConfig

_ANY_RUN = (
    "--run.dir=runs/certify",
    "--run.steps=1",
    "--data.kind=builtin",
    "--data.name=multiplication",
    "--reward.kind=last_number",
)
"""Keys that every recipe needs. Certify ignores them."""


def certify(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Check every promise and print a line for each; 1 if one fails."""
    config = _config(arguments.subjects, overrides)
    from zerogap.certify import certify as certify_config

    if arguments.json:
        certificate = certify_config(config, quiet=arguments.quiet)
        print(json.dumps(certificate.to_json()))
    else:
        certificate = certify_config(
            config,
            quiet=arguments.quiet,
            on_report=lambda line: print(line, flush=True),
            on_verdict=lambda verdict: print(verdict.line(), flush=True),
        )
        print(_summary(certificate))
    return 0 if certificate.is_kept else 1


def _config(subjects: Sequence[str], overrides: Sequence[str]) -> RunConfig:
    from zerogap.config.load import load_config
    from zerogap.config.recipes import named_recipes

    named = named_recipes()
    if all(subject.endswith(".toml") or subject in named for subject in subjects):
        return load_config(subjects, overrides).config
    if len(subjects) > 1:
        msg = f"{' '.join(subjects)}: certify takes one model, or recipes that name it; give one MODEL, or RECIPE files (.toml)"
        raise ConfigError(msg)
    model = f"--model.path={json.dumps(subjects[0])}"
    return load_config([], [*_ANY_RUN, model, *overrides]).config


def _summary(certificate: Certificate) -> str:
    seconds = sum(verdict.seconds for verdict in certificate.verdicts)
    broken = [str(v.promise) for v in certificate.verdicts if not v.is_kept]
    if broken:
        return f"NOT certified: {len(broken)} of {len(certificate.verdicts)} promises fail here ({', '.join(broken)}); {seconds:.0f} s"  # fmt: skip
    return f"certified: all {len(certificate.verdicts)} promises hold here; {seconds:.0f} s"
