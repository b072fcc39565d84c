"""``zerogap eval``."""

import argparse
import json
from collections.abc import Sequence


def evaluate(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Grade a model on a recipe's evaluation prompts and print the metrics."""
    from zerogap.config.load import load_config

    config = load_config(arguments.recipes, overrides).config
    from zerogap import run

    metrics = run.evaluate_model(arguments.model, config, quiet=arguments.quiet)
    if arguments.json:
        print(json.dumps(metrics))
        return 0
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        print(f"{name:<{width}}  {value:.4g}")
    return 0
