import sys

import pytest

from zerogap.errors import MissingExtra
from zerogap.obs import TensorBoardSink


def test_scalars_can_be_read_back_and_a_resumed_run_replaces_later_steps(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for resumed_step, values in ((None, {1: 0.1, 2: 0.2, 3: 0.3}), (1, {2: 0.9})):
        sink = TensorBoardSink(tmp_path, resumed_step=resumed_step)
        for step, value in values.items():
            sink.write(step, step, {"reward/mean": value})
        sink.close()
    accumulator = accumulators.EventAccumulator(str(tmp_path))
    accumulator.Reload()
    scalars = [(e.step, round(e.value, 6)) for e in accumulator.Scalars("reward/mean")]
    assert scalars == [(1, 0.1), (2, 0.9)]
    assert "weight_version" in accumulator.Tags()["scalars"]


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(MissingExtra, match=r"pip install 'zerogap\[tensorboard\]'"):
        TensorBoardSink(tmp_path)
