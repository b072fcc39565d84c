"""A run room that records what it is asked, so that the command line is tested without torch."""

import sys
from types import ModuleType

import pytest


@pytest.fixture
def fake_run(monkeypatch):
    """Stands where zerogap.run would be imported from; ``calls`` holds (name, args, kwargs)."""
    module = ModuleType("zerogap.run")
    module.calls = []
    module.results = {"evaluate_model": {"eval/reward/mean": 0.25, "eval/num_prompts": 4}}

    def record(name):
        def call(*args, **kwargs):
            module.calls.append((name, args, kwargs))
            result = module.results.get(name)
            if isinstance(result, BaseException):
                raise result
            return result

        return call

    audit = ("audit_step", "describe_audit", "write_audit_page")
    capsule = ("make_capsule", "describe_capsule", "replay_capsule", "describe_replay")
    others = ("train", "evaluate_model", "generate_text", "export_run", "certify")
    for name in (*others, *audit, *capsule):
        setattr(module, name, record(name))
    monkeypatch.setitem(sys.modules, "zerogap.run", module)
    monkeypatch.setattr("zerogap.run", module, raising=False)
    return module
