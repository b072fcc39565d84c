"""``audit_step``: recompute the weights, score the samples, sum up."""

from pathlib import Path

import numpy as np
from rich.console import Console

from zerogap.audit.audited import Audit
from zerogap.audit.recorded import RecordedRun
from zerogap.audit.rewind import Rewound, rewind
from zerogap.data import reencode
from zerogap.errors import CheckpointError
from zerogap.ledger import AuditedSample, ForwardScorer, LedgerEntry, attribute_samples
from zerogap.obs import Progress
from zerogap.run.machine import apply_threads
from zerogap.run.versions import StepSettings
from zerogap.types import Sample, exclusion_reason


def audit_step(run_dir: Path, *, step: int | None = None, quiet: bool = False) -> Audit:
    """Score every token that a recorded step trained on, at every stage of the ledger.

    Args:
        run_dir: the run's folder; it does not change. Apart from it only the recipe's model is read.
        step: a recorded step; None: the last one.
        quiet: show no progress.

    Raises:
        CheckpointError: the folder lacks the step's rollouts, or those that its weights are recomputed from.
    """
    run, progress = RecordedRun(run_dir), Progress(Console(stderr=True), is_quiet=quiet)
    if not run.config.loss.trains_on_completions:
        msg = f"{run_dir}: loss.kind = {run.config.loss.kind!r} trains on the data set's answers, which no engine sampled, so there is no gap to attribute; audit a run that samples"
        raise CheckpointError(msg)
    apply_threads(recorded=run.num_threads)
    step = run.choose_step(step)
    samples = [s for s in run.samples(step) if exclusion_reason(s) is None]
    versions = {int(v) for s in samples for v in np.unique(s.weight_version[s.loss_mask])}
    rewound = rewind(
        run, step - 1, older=frozenset(v for v in versions if v < step - 1), progress=progress
    )
    settings = run.settings(step)
    with progress.phase(f"scoring step {step}", total=len(samples), unit="rollouts"):
        audited = _attribute(run, rewound, samples, settings)
    return Audit(
        run=run_dir.resolve().name,
        origin=rewound.origin,
        is_proven=rewound.is_proven,
        entry=LedgerEntry.of(audited, step=step, version=rewound.version),
        samples=audited,
        recorded={k: v for k, v in run.metrics(step).items() if k.startswith("gap/")},
        decode_token=lambda token_id: rewound.policy.tokenizer.decode([token_id], False),
    )


def _attribute(
    run: RecordedRun, rewound: Rewound, samples: list[Sample], settings: StepSettings
) -> list[AuditedSample]:
    policy = rewound.policy
    scorer = ForwardScorer(
        policy.model,
        live_version=lambda: rewound.version,
        micro_batch_tokens=run.config.train.micro_batch_tokens,
        history=rewound.history,
        gemm=settings.gemm,
    )
    if not samples:
        return []
    return attribute_samples(
        samples,
        scorer,
        version=rewound.version,
        is_exact=settings.is_exact,
        reencode=lambda token_ids: reencode(token_ids, policy.tokenizer),
    )
