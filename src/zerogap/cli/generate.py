"""``zerogap generate``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from zerogap.errors import InvalidRequest

if TYPE_CHECKING:
    from zerogap.types import CompletionUpdate, GenerateOutput, SamplingParams


def generate(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print completions; a single one is streamed."""
    prompts = arguments.prompt or [_read_prompt()]
    params = _sampling_params(arguments)
    from zerogap import run

    # Outputs of several prompts come interleaved; rid is the index of the prompt.
    streamed = run.generate_text(
        arguments.model, prompts, params, system=arguments.system, is_raw=arguments.raw
    )
    is_single = len(prompts) * params.n == 1
    for output in _print_growing(streamed) if is_single else _print_finished(streamed):
        if not arguments.quiet:
            print(_ending(output), file=sys.stderr)
    return 0


def _read_prompt() -> str:
    if sys.stdin.isatty():
        msg = "there is no prompt: --prompt is missing, and standard input is a terminal; give --prompt TEXT, or pipe a prompt in"
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


def _print_growing(streamed: Iterable[CompletionUpdate]) -> Iterator[GenerateOutput]:
    """Print the text as it grows; yields the finished output."""
    shown = ""
    for step in streamed:
        text = step.output.text if step.output else step.text
        print((text or "")[len(shown) :], end="", flush=True)
        shown = text or ""
        if step.output:
            print(flush=True)
            yield step.output


def _print_finished(streamed: Iterable[CompletionUpdate]) -> Iterator[GenerateOutput]:
    """Print each finished completion under a heading; yields the finished outputs."""
    for step in streamed:
        if step.output:
            print(f"--- prompt {int(step.rid) + 1}, completion {step.index + 1}")
            print(step.output.text, flush=True)
            yield step.output


def _ending(output: GenerateOutput) -> str:
    reason = output.finish_reason
    return f"{len(output.output_ids)} tokens, {reason.message or reason.kind}, seed {output.seed}"
