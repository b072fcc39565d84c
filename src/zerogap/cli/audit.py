"""``zerogap audit``."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path


def audit(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print the gap of a recorded step by source, over all its tokens, and the worst tokens."""
    from zerogap.audit import audit_step, describe_audit, write_audit_page

    found = audit_step(Path(arguments.run_dir), step=arguments.step, quiet=arguments.quiet)
    if arguments.json:
        print(json.dumps(found.to_json(arguments.tokens), ensure_ascii=False))
    else:
        for line in describe_audit(found, num_worst=arguments.tokens):
            print(line)
    if arguments.html:
        page = write_audit_page(Path(arguments.html), found)
        if not arguments.json:
            print(f"page: {page}")
    return 0
