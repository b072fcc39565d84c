"""``zerogap generate``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from zerogap.errors import InvalidRequest

if TYPE_CHECKING:
    from zerogap.types import GenerateOutput, SamplingParams


def generate(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print completions; a single one appears while it is sampled."""
    prompts = arguments.prompt or [_read_prompt()]
    params = _sampling_params(arguments)
    from zerogap import run

    # Cumulative outputs, in any order; an output's rid is the number of its prompt, from 0.
    outputs = run.generate_text(
        arguments.model, prompts, params, system=arguments.system, is_raw=arguments.raw
    )
    is_single = len(prompts) * params.n == 1
    finished = [_print_growing(outputs)] if is_single else _print_finished(outputs)
    if not arguments.quiet:
        print("; ".join(map(_ending, finished)), file=sys.stderr)
    return 0


def _read_prompt() -> str:
    if sys.stdin.isatty():
        msg = "no --prompt is given, and standard input is a terminal: nothing to continue; give --prompt TEXT, or pipe a prompt in"
        raise InvalidRequest(msg)
    return sys.stdin.read().rstrip("\n")


def _sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    from zerogap.types import SamplingParams

    return SamplingParams(
        n=arguments.n,
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        min_p=arguments.min_p,
        stop=tuple(arguments.stop),
        sampling_seed=arguments.seed,
    )


def _print_growing(outputs: Iterable[GenerateOutput]) -> GenerateOutput:
    """Print what each output adds to the text so far; returns the last one."""
    shown = ""
    for output in outputs:
        text = output.text or ""
        print(text[len(shown) :], end="", flush=True)
        shown = text
    print()
    return output


def _print_finished(outputs: Iterable[GenerateOutput]) -> list[GenerateOutput]:
    """Print whole completions under a heading each, by prompt and then by number; returns them."""
    newest = {(int(output.rid), output.index): output for output in outputs}
    finished = [newest[key] for key in sorted(newest)]
    for output in finished:
        print(f"--- prompt {int(output.rid) + 1}, completion {output.index + 1}")
        print(output.text)
    return finished


def _ending(output: GenerateOutput) -> str:
    reason = output.finish_reason
    return f"{len(output.output_ids)} tokens, {reason.message or reason.kind}, seed {output.seed}"
