"""Fake rooms that record their calls, so the command line is tested without torch."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

COMMANDS = {
    "run": ("train", "evaluate_model", "generate_text", "export_run"),
    "certify": ("certify",),
    "audit": ("audit_step", "describe_audit", "write_audit_page"),
    "capsule": ("make_capsule", "describe_capsule", "replay_capsule", "describe_replay"),
}
"""The rooms that commands import, and what they call there."""


@pytest.fixture
def fake_run(monkeypatch):
    """Replaces these rooms at import; ``calls`` holds (name, args, kwargs)."""
    fake = SimpleNamespace(calls=[])
    fake.results = {"evaluate_model": {"eval/reward/mean": 0.25, "eval/num_prompts": 4}}

    def record(name):
        def call(*args, **kwargs):
            fake.calls.append((name, args, kwargs))
            result = fake.results.get(name)
            if isinstance(result, BaseException):
                raise result
            return result

        return call

    for room, names in COMMANDS.items():
        module = ModuleType(f"zerogap.{room}")
        for name in names:
            setattr(module, name, record(name))
        monkeypatch.setitem(sys.modules, f"zerogap.{room}", module)
        monkeypatch.setattr(f"zerogap.{room}", module, raising=False)
    return fake
