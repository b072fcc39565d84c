"""Run folders of any state, without a run: what a report reads."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from helpers.recipes import run_config
from zerogap.obs import GAP_SOURCES
from zerogap.rollout.storage import save_rollouts
from zerogap.types import FinishReason, Outcome, Sample, Source, Turn


def step_record(step: int, **changes: Any) -> dict[str, Any]:
    """A plausible line of metrics.jsonl; ``changes`` replace metrics, None leaves one out (``__`` is ``/``)."""
    record = {
        "step": step,
        "weight_version": step,
        "reward/mean": 0.2 + 0.1 * step,
        "rollout/num_samples": 8,
        "rollout/completion_len/mean": 40.0,
        "rollout/completion_len/max": 64,
        "outcome/completed": 7,
        "outcome/truncated": 1,
        "group/count": 2,
        "group/without_signal": 1,
        "excluded/invalid_outcome": 0,
        "gap/total/mean": 0.0,
        "gap/total/max": 0.0,
        "gap/num_tokens": 320,
        "policy/entropy": 0.8,
        "policy/clip_fraction": 0.0,
        "train/grad_norm": 0.5,
        "train/tokens_per_s": 900.0,
        "engine/tokens_per_s": 300.0,
        "step/time_s": 10.0,
        "step/generate_s": 6.0,
        "step/train_s": 3.0,
    }
    record |= {name.replace("__", "/"): value for name, value in changes.items()}
    return {name: value for name, value in record.items() if value is not None}


def ledger_record(step: int, **changes: Any) -> dict[str, Any]:
    """``step_record`` with the gap by source: a source's value is its raw and open mean, twice that its max.

    ``<source>__signed`` is its signed mean, else that is the mean.
    """
    given = {name: changes.pop(f"{name}__signed", None) for name in GAP_SOURCES}
    sources = {name: changes.pop(name, 0.0) for name in GAP_SOURCES}
    by_source = {
        f"gap/{name}/{view}/{statistic}": 0.0
        if view == "open" and name == "tokens"
        else factor * sources[name]
        for name in GAP_SOURCES
        for view in ("raw", "open")
        for statistic, factor in (("mean", 1), ("max", 2))
    }
    signed = {
        f"gap/{name}/open/signed_mean": by_source[f"gap/{name}/open/mean"]
        if given[name] is None
        else given[name]
        for name in GAP_SOURCES
    }
    total = {"gap/total/signed_mean": sum(signed.values())}
    return step_record(step, **changes) | by_source | signed | total


def evaluation_record(step: int, reward: float) -> dict[str, Any]:
    """The record of step 0: an evaluation and nothing else."""
    return {"step": step, "weight_version": 0, "eval/reward/mean": reward, "step/time_s": 5.0}


def kept_sample(
    completion_ids: Sequence[int],
    *,
    prompt_ids: Sequence[int] = (1, 2, 3),
    group_id: str = "g0",
    index: int = 0,
    reward: float | None = 1.0,
    outcome: Outcome = Outcome.COMPLETED,
    log_prob: float = -0.5,
    finish_reason: FinishReason | None = None,
    seed: int = 0,
    **changes: Any,
) -> Sample:
    """A single-turn sample whose tokens were all drawn with the same log-prob."""
    num_prompt, num_completion = len(prompt_ids), len(completion_ids)
    parts = [num_prompt, num_completion]
    sample = Sample(
        token_ids=np.array([*prompt_ids, *completion_ids]),
        source=np.repeat([Source.PROMPT, Source.POLICY], parts),
        loss_mask=np.repeat([False, outcome.is_valid], parts),
        rollout_log_probs=np.repeat([np.nan, log_prob], parts),
        kept_log_mass=np.zeros(sum(parts)),
        weight_version=np.repeat([-1, 0], parts),
        group_id=group_id,
        rollout_id=f"{group_id}/{index}",
        turns=(
            Turn(
                start=num_prompt,
                end=sum(parts),
                finish_reason=finish_reason or FinishReason("stop"),
                seed=seed,
            ),
        ),
        outcome=outcome,
        reward=reward,
        reward_parts={} if reward is None else {"correct": reward},
    )
    return replace(sample, **changes)


def keep_rollouts(
    run_dir: Path,
    step: int,
    samples: Sequence[Sample],
    *,
    gap: float | None = 0.0,
    notes: dict[str, dict[str, Any]] | None = None,
) -> Path:
    """Save a step's rollouts; the trainer's log-probs are the engine's plus ``gap``, or absent if None."""
    folder = run_dir / "rollouts" / f"step_{step:06d}"
    columns = None
    if gap is not None:
        flat = np.concatenate([sample.rollout_log_probs for sample in samples])
        columns = {"old_log_probs": (flat + np.float32(gap)).astype(np.float32)}
    save_rollouts(folder, samples, notes=notes, trainer_columns=columns)
    return folder


def write_run(run_dir: Path, records: Sequence[dict[str, Any]], **sections: Any) -> Path:
    """A folder with config, environment and metrics; ``sections`` as in ``helpers.recipes.run_config``."""
    run_dir.mkdir(parents=True, exist_ok=True)
    config = run_config(**sections).model_dump(mode="json")
    (run_dir / "config.json").write_text(json.dumps(config))
    environment = {"zerogap": "0.1.0", "commit": None, "packages": {"torch": "2.13.0"}}
    (run_dir / "environment.json").write_text(json.dumps(environment))
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return run_dir
