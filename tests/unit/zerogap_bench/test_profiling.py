import pytest
import torch
from helpers.kernel_paths import running_on
from helpers.tiny_models import tiny_model

from zerogap.engine import Engine
from zerogap.kernels.graph import CapturedGraph
from zerogap.kernels.native import NativeKernels
from zerogap.types import GenerateRequest, SamplingParams
from zerogap_bench.profiling import profiled


def rollout(engine: Engine) -> None:
    params = SamplingParams(n=4, max_new_tokens=12, ignore_eos=True)
    engine.flush_cache()
    engine.generate([GenerateRequest(input_ids=tuple(range(3, 20)), sampling_params=params)])


def test_every_kernel_has_a_name_also_in_recorded_passes():
    before = NativeKernels._call, CapturedGraph.run
    with running_on("cpu"):
        engine = Engine(tiny_model(), kv_cache_tokens=512, eos_token_ids=())
        rollout(engine)
        before_run = engine.stats
        with profiled() as table:
            rollout(engine)
    num_passes = (engine.stats - before_run).num_steps
    attention = [row for row in table.rows if row["name"] == "zg_paged_attention"]
    assert num_passes >= 12
    assert sum(row["calls"] for row in attention) == 2 * num_passes
    assert (NativeKernels._call, CapturedGraph.run) == before
    assert sum(row["share"] for row in table.rows) == pytest.approx(1)


def test_without_the_kernels_torch_operators_are_what_there_is():
    with running_on("torch"), profiled() as table:
        torch.mm(torch.ones(8, 8), torch.ones(8, 8))
    assert "aten::mm" in {row["name"] for row in table.rows}
