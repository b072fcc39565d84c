"""Promise 1: a step with learning rate 0 changes no weight, and every policy ratio in it is exactly 1."""

from collections.abc import Callable, Mapping

from zerogap.certify.finding import Finding
from zerogap.train import TrainMetrics


def check_identity(
    steps: Mapping[str, Callable[[], TrainMetrics]], digest: Callable[[], str]
) -> Finding:
    """Take steps with learning rate 0.

    Args:
        steps: name of the old log-probs -> takes one step of several updates.
        digest: computes the digest of the current weights.
    """
    before, num_tokens, wrong = digest(), 0, []
    for against, step in steps.items():
        trained = step()
        policy = trained.policy
        num_tokens += policy.num_tokens
        if not policy.ratio_min == policy.ratio_max == policy.ratio_mean == 1:
            wrong.append(f"ratios to {against} lie in [{policy.ratio_min:.9g}, {policy.ratio_max:.9g}]")  # fmt: skip
        if trained.audit.num_different:
            wrong.append(f"{trained.audit.num_different} log-probs differ from the engine's")  # fmt: skip
        if policy.clip_fraction:
            wrong.append(f"{policy.clip_fraction:.2%} of the tokens are clipped")
    if digest() != before:
        wrong.append("the weights have changed at learning rate 0")
    if wrong:
        cure = 'engine and trainer must agree first (promise 2); with numerics = "exact" this is a bug: please report it'
        return Finding(is_kept=False, figure="; ".join(wrong), cure=cure)
    return Finding(is_kept=True, figure=f"{num_tokens} ratios, to {' and to '.join(steps)}: each exactly 1; none clipped, weights unchanged")  # fmt: skip
