import json
import pathlib
import re

import pytest
import torch
from helpers.engine_samples import trainer_of
from helpers.tiny_engine import tiny_engine
from helpers.tiny_models import randomize, tiny_model
from helpers.tolerance import EXACT
from helpers.train_batches import make_groups, rewarded, train_on

from zerogap.errors import CheckpointError, WeightSyncError
from zerogap.run.checkpoint import (
    JsonPart,
    OlderWeights,
    WeightsPart,
    load_checkpoint,
    save_checkpoint,
)
from zerogap.run_folder import list_checkpoints
from zerogap.weights import (
    CopiedWeights,
    Publisher,
    SharedWeights,
    WeightHistory,
    WeightVersions,
    digest_weights,
    named_weights,
    weight_fingerprint,
)


class Place:
    """An owner of a small state."""

    def __init__(self, position=0):
        self.position = position

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def save(folder, model, step, keep=2):
    parts = [WeightsPart(model), trainer_of(model), JsonPart("prompts", Place(step))]
    return save_checkpoint(folder, step, parts, keep=keep)


def test_each_part_comes_back_to_its_owner(tmp_path):
    model, other = tiny_model(seed=1), tiny_model(seed=2)
    trainer, again = trainer_of(model), trainer_of(other)
    train_on(trainer, rewarded(make_groups(2, 2)))
    parts = [WeightsPart(model), trainer, JsonPart("prompts", Place(7))]
    path = save_checkpoint(tmp_path, 1, parts, keep=1)
    place = Place()
    assert load_checkpoint(path, [WeightsPart(other), again, JsonPart("prompts", place)]) == 1
    assert weight_fingerprint(other) == weight_fingerprint(model)
    assert place.position == 7
    EXACT.check(again.state_dict(), trainer.state_dict())


class Shard:
    """A part that the package does not know: one process's share of a state."""

    def __init__(self, rank, values=()):
        self.name, self.values = f"shard_{rank}", values

    def save(self, folder):
        (folder / "deeper").mkdir()
        (folder / "deeper" / "values.json").write_text(json.dumps(self.values))

    def load(self, folder):
        self.values = json.loads((folder / "deeper" / "values.json").read_text())


def test_a_part_that_nobody_foresaw_is_saved_beside_the_others(tmp_path):
    model = tiny_model()
    path = save_checkpoint(tmp_path, 3, [WeightsPart(model), Shard(0, [1]), Shard(1, [2])], keep=1)
    first, second = Shard(0), Shard(1)
    load_checkpoint(path, [second])
    load_checkpoint(path, [first])
    assert (first.values, second.values) == ([1], [2])
    with pytest.raises(CheckpointError, match=r"no part 'shard_2' \(weights, shard_0, shard_1\)"):
        load_checkpoint(path, [Shard(2)])


class Fails(Shard):
    def save(self, folder):
        super().save(folder)
        raise OSError("the disk is full")


def test_a_part_that_cannot_be_saved_leaves_no_checkpoint(tmp_path):
    save(tmp_path, tiny_model(), 1)
    with pytest.raises(OSError, match="full"):
        save_checkpoint(tmp_path, 2, [WeightsPart(tiny_model()), Fails(0)], keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]


def test_equal_states_are_equal_files(tmp_path):
    model = without(tiny_model(), "norm.weight")
    files = [
        save_checkpoint(tmp_path, step, [WeightsPart(model)], keep=9) / "weights/model.safetensors"
        for step in range(8)
    ]
    assert len({file.read_bytes() for file in files}) == 1


def test_only_the_newest_are_kept(tmp_path):
    model = tiny_model()
    for step in (1, 2, 3):
        save(tmp_path, model, step)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_000002", "step_000003"]


def test_a_half_written_one_does_not_count_and_is_cleared_away(tmp_path):
    partial = tmp_path / ".step_000009.partial"
    partial.mkdir()
    (partial / "state.json").write_text("{}")
    assert list_checkpoints(tmp_path) == []
    save(tmp_path, tiny_model(), 1)
    assert not partial.exists()


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, tiny_model(seed=1), 1)
    path = save(tmp_path, tiny_model(seed=2), 1)
    model = tiny_model(seed=3)
    load_checkpoint(path, [WeightsPart(model)])
    assert weight_fingerprint(model) == weight_fingerprint(tiny_model(seed=2))


def every_part(model):
    history = WeightHistory(2)
    history.remember(2, model)
    return [WeightsPart(model), trainer_of(model), OlderWeights(history, 3), JsonPart("prompts", Place(3))]  # fmt: skip


FILES = (
    "state.json",
    "weights/model.safetensors",
    "trainer/trainer.safetensors",
    "older_weights/000002.safetensors",
    "prompts/state.json",
)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def change_a_number(path):
    text = path.read_text("latin-1")
    path.write_text(re.sub(r"[1-8](?!.*[1-8])", "9", text, flags=re.DOTALL), "latin-1")


def cut_in_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def add_a_file(path):
    (path.parent / "000001.safetensors").write_bytes(path.read_bytes())


DAMAGE = [flip_a_bit, change_a_number, cut_in_half, pathlib.Path.unlink]


def test_every_file_of_a_checkpoint_is_among_those_that_are_damaged(tmp_path):
    path = save_checkpoint(tmp_path, 3, every_part(tiny_model()), keep=1)
    found = {f.relative_to(path).as_posix() for f in path.rglob("*") if f.is_file()}
    assert found == set(FILES)
    assert load_checkpoint(path, every_part(tiny_model())) == 3


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", FILES)
def test_damage_to_any_file_of_a_checkpoint_is_refused(tmp_path, name, damage):
    path = save_checkpoint(tmp_path, 3, every_part(tiny_model()), keep=1)
    damage(path / name)
    with pytest.raises(CheckpointError, match=r"step_000003.* the previous one"):
        load_checkpoint(path, every_part(tiny_model()))


def test_a_file_that_nobody_saved_is_refused(tmp_path):
    path = save_checkpoint(tmp_path, 3, every_part(tiny_model()), keep=1)
    add_a_file(path / "older_weights/000002.safetensors")
    with pytest.raises(CheckpointError, match=r"000001.safetensors is not as it was saved"):
        load_checkpoint(path, every_part(tiny_model()))


def test_another_architecture_is_refused_by_tensor_name(tmp_path):
    path = save(tmp_path, tiny_model("llama"), 1)
    with pytest.raises(CheckpointError, match=r"holds another model: .*q_norm"):
        load_checkpoint(path, [WeightsPart(tiny_model("qwen3"))])
    path = save(tmp_path, tiny_model(intermediate_size=64), 2)
    with pytest.raises(CheckpointError, match=r"holds another model: .*gate_up"):
        load_checkpoint(path, [WeightsPart(tiny_model())])


def test_another_format_is_refused(tmp_path):
    path = save(tmp_path, tiny_model(), 1)
    (path / "state.json").write_text('{"format": 3}')
    with pytest.raises(CheckpointError, match="does not have format 5"):
        load_checkpoint(path, [WeightsPart(tiny_model())])


# ------------------------------------------------------------ frozen parameters


def without(model, *names):
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def test_frozen_weights_are_not_saved_and_must_be_the_ones_it_was_trained_on(tmp_path):
    name = "embed_tokens.weight"
    model = without(tiny_model(seed=1), name)
    with torch.no_grad():
        model.norm.weight.mul_(1.5)
    path = save(tmp_path, model, 1)
    again = without(tiny_model(seed=1), name)
    load_checkpoint(path, [WeightsPart(again)])
    EXACT.check(named_weights(again), named_weights(model))
    with pytest.raises(CheckpointError, match="frozen weights are of another model"):
        load_checkpoint(path, [WeightsPart(without(tiny_model(seed=2), name))])


def test_a_checkpoint_of_another_frozen_set_is_refused_with_names(tmp_path):
    path = save(tmp_path, without(tiny_model(), "norm.weight"), 1)
    other = without(tiny_model(), "embed_tokens.weight")
    before = weight_fingerprint(other)
    with pytest.raises(
        CheckpointError,
        match=r"embed_tokens.weight are frozen only now, norm.weight only in the checkpoint",
    ):
        load_checkpoint(path, [WeightsPart(other)])
    with pytest.raises(
        CheckpointError, match=r"none are frozen only now, norm.weight only in the checkpoint"
    ):
        load_checkpoint(path, [WeightsPart(tiny_model())])
    assert weight_fingerprint(other) == before


# ------------------------------------------------------------ older versions


def test_older_versions_that_will_be_served_come_back_with_what_they_stand_for(tmp_path):
    history, versions = WeightHistory(3), WeightVersions()
    for version in (2, 3, 4):
        model = tiny_model(seed=version)
        history.remember(version, model)
        versions.record(version, weight_fingerprint(model))
    parts = [WeightsPart(model), OlderWeights(history, 4), JsonPart("versions", versions)]
    path = save_checkpoint(tmp_path, 4, parts, keep=1)
    again, resumed, known = tiny_model(seed=9), WeightHistory(3), WeightVersions()
    load_checkpoint(
        path, [WeightsPart(again), OlderWeights(resumed, 0), JsonPart("versions", known)]
    )
    assert resumed.versions == (2, 3)
    assert weight_fingerprint(again) == known.digest_of(4)
    for version in resumed.versions:
        assert digest_weights(resumed.weights(version)).hex == known.digest_of(version)
    engine = tiny_engine(tiny_model(seed=8))
    Publisher(CopiedWeights(again, resumed, lag=2), engine, known).publish(4)
    assert engine.weight_version == 2
    assert engine.digest().hex == known.digest_of(2)
    randomize(again, 5)
    assert digest_weights(resumed.weights(3)).hex == known.digest_of(3)


def test_a_run_that_stopped_to_lag_keeps_none(tmp_path):
    model = tiny_model()
    path = save_checkpoint(tmp_path, 1, [WeightsPart(model), OlderWeights(None, 1)], keep=1)
    history = WeightHistory(2)
    load_checkpoint(path, [OlderWeights(history, 0)])
    assert history.versions == ()


def test_another_version_under_a_number_that_the_run_knows_is_not_served_after_a_resume():
    versions = WeightVersions()
    versions.record(4, weight_fingerprint(tiny_model(seed=4)))
    model = tiny_model(seed=5)
    with pytest.raises(WeightSyncError, match="version 4 was published with digest"):
        Publisher(SharedWeights(model), tiny_engine(model), versions).publish(4)
