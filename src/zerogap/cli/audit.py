"""``zerogap audit``."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path


def audit(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print a recorded step's ledger over all its tokens, and the worst of them."""
    from zerogap import run

    found = run.audit_step(Path(arguments.run_dir), step=arguments.step, quiet=arguments.quiet)
    if arguments.json:
        print(json.dumps(found.to_json(arguments.tokens), ensure_ascii=False))
    else:
        for line in run.describe_audit(found, num_worst=arguments.tokens):
            print(line)
    if arguments.html:
        page = run.write_audit_page(Path(arguments.html), found)
        if not arguments.json:
            print(f"page: {page}")
    return 0
