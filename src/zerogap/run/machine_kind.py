"""Whether two machines are of one kind: only then are bits promised."""

from collections.abc import Iterator, Mapping
from typing import Any


def machine_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """What bits depend on and is different: processor, threads, kernels, torch.

    Args:
        then: an ``environment.json``.
        now: another.
    """
    return tuple(_machine(then, now))


def code_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Whether other code of this package ran: a suspect, though it is compared to the bit all the same."""
    return tuple(
        _changed(name, then.get(name), now.get(name))
        for name in ("zerogap", "commit")
        if then.get(name) != now.get(name)
    )


def _machine(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in ("processor", "threads"):
        if then.get(name) != now.get(name):
            yield _changed(name, then.get(name), now.get(name))
    # The kernels' own line names the threads too.
    if then.get("threads") == now.get("threads") and then.get("kernels") != now.get("kernels"):
        yield _changed("kernels", then.get("kernels"), now.get("kernels"))
    if _torch(then) != _torch(now):
        yield _changed("torch", _torch(then), _torch(now))


def _changed(name: str, then: object, now: object) -> str:
    return f"{name} {then} then, {now} now"


def _torch(environment: Mapping[str, Any]) -> object:
    return environment.get("packages", {}).get("torch")
