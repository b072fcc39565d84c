import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from helpers.recorded_run import change_column, copy_without
from helpers.same_samples import assert_same
from helpers.samples import make_output, ragged

from zerogap.capsule import (
    agrees_with_run,
    describe_capsule,
    describe_replay,
    make_capsule,
    read_capsule,
    replay_capsule,
)
from zerogap.capsule import replay as replaying
from zerogap.capsule.file import write_capsule
from zerogap.errors import CheckpointError
from zerogap.rollout import save_rollouts
from zerogap.types import Sample, Source


@pytest.fixture(scope="module")
def capsule(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capsule of step 3."""
    path = tmp_path_factory.mktemp("capsules") / "step3.zip"
    make_capsule(recorded, path, step=3, quiet=True)
    return path


def changed(capsule: Path, to: Path, member: str, change: Callable[[bytes], bytes | None]) -> Path:
    """A copy with one member changed or left out."""
    with zipfile.ZipFile(capsule) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == member:
                content = change(content)
            if content is not None:
                new.writestr(name, content)
    return to


def test_a_replay_gives_the_same_bits_as_the_run(capsule: Path):
    read = read_capsule(capsule)
    assert (read.header.step, read.header.weight_version, read.header.is_proven) == (3, 2, True)
    assert agrees_with_run(read)
    replay = replay_capsule(capsule, quiet=True)
    assert replay.is_equal
    assert (replay.machine_differences, replay.other_weights) == ((), ())
    assert list(describe_replay(replay))[-1] == "the same bits"


def test_equal_numbers_with_one_other_gradient_are_not_the_same_bits(capsule: Path):
    """Swapping two elements changes neither loss nor norms."""
    replay = replay_capsule(capsule, quiet=True)
    tensors = dict(replay.found.tensors) | {"norm.weight": "0" * 32}
    other = replace(replay, found=replace(replay.found, tensors=tensors))
    assert not other.is_equal
    assert list(describe_replay(other))[-1] == (
        "NOT the same bits: the gradients of 1 tensor (norm.weight) differ"
    )


def test_a_capsule_says_what_is_in_it(capsule: Path):
    lines = "\n".join(describe_capsule(read_capsule(capsule), capsule))
    assert "version 2, embedded with the tokenizer" in lines
    assert "the run recorded the same loss" in lines


def test_everything_a_record_can_hold_comes_back(capsule: Path, tmp_path: Path):
    """Several turns with an environment between them, kept sets and routes; alone in the file or among plain samples."""
    read = read_capsule(capsule)
    samples = [*read.samples, two_turns()]
    save_rollouts(tmp_path / "step", samples)
    other = replace(read, samples=samples, policy=None)
    write_capsule(tmp_path / "c.zip", other, rollouts=tmp_path / "step")
    for ours, theirs in zip(read_capsule(tmp_path / "c.zip").samples, samples, strict=True):
        assert_same(ours, theirs)


def two_turns() -> Sample:
    def output(prompt_ids, version):
        rows = np.arange((len(prompt_ids) + 1) * 6, dtype=np.uint16).reshape(-1, 3, 2)
        return make_output(
            prompt_ids=prompt_ids,
            weight_version=np.array([version, version + 1]),
            kept_log_mass=np.full(2, -0.1, np.float32),
            kept_sets=ragged([[3, 98], [257]]),
            routes=rows,
        )  # fmt: skip

    first = Sample.from_output(output((256, 97), 1), group_id="g", temperature=1.0)
    asked = first.append([10, 11], source=Source.ENVIRONMENT)
    return asked.append_output(output(asked.token_ids, 2)).scored(0.5)


def test_a_run_that_recorded_something_else_is_told(capsule: Path):
    read = read_capsule(capsule)
    other = replace(read, metrics={**read.metrics, "train/loss": 1.0})
    assert agrees_with_run(other) is False
    assert agrees_with_run(replace(read, metrics={})) is None


def test_one_step_is_one_file_to_the_byte(recorded: Path, capsule: Path, tmp_path: Path):
    make_capsule(recorded, tmp_path / "again.zip", step=3, quiet=True)
    assert (tmp_path / "again.zip").read_bytes() == capsule.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.zip"]


def test_moments_are_not_in_it(capsule: Path):
    assert read_capsule(capsule).trainer_state.keys() == {"num_steps", "torch_rng_state"}


def nudge(content: bytes) -> bytes:
    weights = safetensors.torch.load(content)
    weights["layers.1.o.weight"][0, 0] += 0.01
    return safetensors.torch.save(weights)


def test_other_weights_give_other_bits_and_are_named(capsule: Path, tmp_path: Path):
    path = changed(capsule, tmp_path / "other.zip", "weights.safetensors", nudge)
    replay = replay_capsule(path, quiet=True)
    assert not replay.is_equal
    assert replay.other_weights == ("layers.1.o.weight",)
    assert len(replay.other_gradients) > 1
    lines = "\n".join(describe_replay(replay))
    assert "1 tensor (layers.1.o.weight) of 18 differ from the capsule's" in lines
    assert "NOT the same bits: the gradients of" in lines


def pay_more(content: bytes) -> bytes:
    lines = [json.loads(line) for line in content.decode().splitlines()]
    lines[0]["reward"] += 0.25
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def test_other_records_give_other_bits(capsule: Path, tmp_path: Path):
    path = changed(capsule, tmp_path / "other.zip", "rollouts/samples.jsonl", pay_more)
    replay = replay_capsule(path, quiet=True)
    assert replay.other_weights == ()
    assert not replay.is_equal


def test_version_0_is_named_unless_it_is_asked_for(recorded: Path, tmp_path: Path):
    small, large = tmp_path / "small.zip", tmp_path / "large.zip"
    named = make_capsule(recorded, small, step=1, quiet=True)
    assert named.policy is None
    assert "--with-weights" in "\n".join(describe_capsule(named, small))
    make_capsule(recorded, large, step=1, with_weights=True, quiet=True)
    assert replay_capsule(small, quiet=True).is_equal
    assert replay_capsule(large, quiet=True).is_equal
    assert large.stat().st_size > 2 * small.stat().st_size


def test_weights_of_another_model_are_noticed(recorded: Path, tmp_path: Path):
    path = tmp_path / "step1.zip"
    make_capsule(recorded, path, step=1, quiet=True)
    trained = recorded / "export"
    replay = replay_capsule(path, model=str(trained), quiet=True)
    assert not replay.is_equal
    assert len(replay.other_weights) == len(replay.header.weight_digests)
    config = json.loads((trained / "config.json").read_text())
    other = copy_without(trained, tmp_path / "other")
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    with pytest.raises(CheckpointError, match="does not have the capsule's architecture"):
        replay_capsule(path, model=str(other), quiet=True)


def test_a_model_that_nothing_would_read_is_refused(capsule: Path):
    with pytest.raises(
        CheckpointError, match=r"--model elsewhere would not be used: .* leave --model out"
    ):
        replay_capsule(capsule, model="elsewhere", quiet=True)


def on_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    there = replaying.describe_environment()
    monkeypatch.setattr(
        replaying, "describe_environment", lambda: there | {"processor": "abacus", "commit": "zz"}
    )


def test_another_kind_of_machine_is_told_and_compared_within_rounding(
    capsule: Path, monkeypatch: pytest.MonkeyPatch
):
    on_another_processor(monkeypatch)
    replay = replay_capsule(capsule, quiet=True)
    assert replay.is_equal
    lines = "\n".join(describe_replay(replay))
    assert "of another kind (processor" in lines
    assert "is abacus" in lines
    assert "code differs: commit" in lines
    assert lines.endswith("the same bits, though none were promised")
    nearly = replace(replay, found=replace(replay.found, loss=replay.found.loss + 1e-7))
    assert list(describe_replay(nearly))[-1] == "equal within rounding"


def test_a_fault_is_seen_on_another_kind_of_machine_too(
    capsule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    on_another_processor(monkeypatch)
    path = changed(capsule, tmp_path / "other.zip", "rollouts/samples.jsonl", pay_more)
    replay = replay_capsule(path, quiet=True)
    assert not replay.is_equal
    assert list(describe_replay(replay))[-1].startswith("NOT equal within rounding")


@pytest.mark.parametrize(
    ("member", "change", "message"),
    [
        ("capsule.json", lambda content: None, "cannot be read as a capsule"),
        ("weights.safetensors", lambda content: content[:-9], "cannot be read as a capsule"),
        ("rollouts/columns.safetensors", lambda content: b"", "cannot be read as a capsule"),
        ("capsule.json", lambda content: content.replace(b'"format": 2', b'"format": 7'), "has capsule format 7"),
        ("config.json", lambda content: content.replace(b'"seed"', b'"sead"'), "this version of zerogap cannot read the capsule's recipe"),
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_file_is_an_error_that_says_so(
    capsule: Path, tmp_path: Path, member: str, change: Callable, message: str
):
    path = changed(capsule, tmp_path / "bad.zip", member, change)
    with pytest.raises(CheckpointError, match=message):
        replay_capsule(path, quiet=True)


def test_a_file_that_is_no_zip_is_an_error(tmp_path: Path):
    (tmp_path / "bad.zip").write_bytes(b"none")
    with pytest.raises(CheckpointError, match="cannot be read as a capsule"):
        read_capsule(tmp_path / "bad.zip")


def test_a_step_that_trained_on_nothing_has_no_capsule(recorded: Path, tmp_path: Path):
    folder = copy_without(recorded, tmp_path / "run")
    change_column(folder, 4, "loss_mask", lambda mask: np.copyto(mask, False))
    with pytest.raises(CheckpointError, match="trained on none of its 12 samples"):
        make_capsule(folder, tmp_path / "c.zip", step=4, quiet=True)
