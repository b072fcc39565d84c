import asyncio

import numpy as np
import pytest
import torch
from helpers import tiny_engine
from helpers.generated import generated, outputs_of
from helpers.planted_fault import planted_fault
from helpers.tiny_engine import EOS, request
from helpers.tiny_models import FAMILIES, tiny_model
from helpers.tolerance import FP32_MODEL

from zerogap.config import TrainConfig
from zerogap.errors import InvalidRequest, WeightSyncError
from zerogap.foreign import TransformersGenerator
from zerogap.train import NativeTrainer
from zerogap.types import Sample
from zerogap.weights import digest_weights, named_weights

LIMIT = 90
"""Below the model's 97 ids: the rest of the head is padding."""


def prompt(length, seed=0):
    return tuple(3 + token % (LIMIT - 3) for token in tiny_engine.prompt(length, seed))


def generator(model=None, *, version=3, **options) -> TransformersGenerator:
    model = model or tiny_model()
    made = TransformersGenerator(model.config, eos_token_ids=(EOS,), vocab_limit=LIMIT, **options)
    publish(made, model, version)
    return made


def publish(engine, model, version):
    engine.begin_weight_update()
    engine.write_weights((name, p.detach()) for name, p in model.named_parameters())
    engine.end_weight_update(version)


def trainer_log_probs(model, outputs, temperature=1.0):
    samples = [Sample.from_output(o, group_id="g", temperature=temperature) for o in outputs]
    model.limit_vocabulary(LIMIT)
    trainer = NativeTrainer(model, TrainConfig(), total_steps=1)
    return [
        ours[sample.num_prompt_tokens :]
        for ours, sample in zip(trainer.score(samples), samples, strict=True)
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.7])
def test_reported_log_probs_are_those_of_our_own_trainer_up_to_rounding(family, temperature):
    model = tiny_model(family)
    asked = [request(prompt(9, seed), n=3, temperature=temperature) for seed in range(2)]
    outputs = generated(generator(model), asked)
    scores = trainer_log_probs(model, outputs, temperature=temperature or 1.0)
    theirs = np.concatenate([o.output_log_probs for o in outputs])
    FP32_MODEL.check(theirs, np.concatenate(scores))
    other = trainer_log_probs(tiny_model(family, seed=1), outputs, temperature=temperature or 1.0)
    with planted_fault("the trainer holds other weights"):
        FP32_MODEL.check(theirs, np.concatenate(other))


def test_the_same_request_draws_the_same_whatever_is_asked_beside_it():
    engine = generator()
    asked = [request(prompt(9, seed), rid=f"r{seed}", n=2, sampling_seed=seed) for seed in range(3)]
    alone = [generated(engine, [one]) for one in asked]
    beside = generated(engine, list(reversed(asked)))
    by_name = {(o.rid, o.index): o for o in beside}
    for one in (output for outputs in alone for output in outputs):
        assert by_name[one.rid, one.index].output_ids.tolist() == one.output_ids.tolist()
    assert alone[0][0].output_ids.tolist() != alone[0][1].output_ids.tolist()


def test_torch_random_stream_stays_the_users():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    generated(generator(), [request(prompt(5))])
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}])
def test_the_mass_of_the_kept_set_is_reported(cut):
    model = tiny_model()
    (output,) = generated(generator(model), [request(prompt(9), **cut)])
    (ours,) = trainer_log_probs(model, [output])
    assert (output.kept_log_mass < -0.01).any()
    assert (output.output_log_probs <= output.kept_log_mass).all()
    FP32_MODEL.check(output.output_log_probs, ours)
    with planted_fault("log-probs within the kept set"):
        FP32_MODEL.check(output.output_log_probs - output.kept_log_mass, ours)
    (whole,) = generated(generator(model), [request(prompt(9))])
    assert (whole.kept_log_mass == 0).all()


def test_an_end_token_ends_a_completion_and_is_part_of_it():
    stops = (3, 4, 5)
    asked = [
        request(prompt(9, s), n=4, stop_token_ids=stops, ignore_eos=False, sampling_seed=s)
        for s in range(4)
    ]
    outputs = generated(generator(), asked)
    kinds = {output.finish_reason.kind for output in outputs}
    assert kinds == {"stop", "length"}
    for output in outputs:
        is_end = np.isin(output.output_ids, (EOS, *stops))
        assert is_end[:-1].sum() == 0
        assert is_end[-1] == (output.finish_reason.kind == "stop")
        assert output.weight_version.tolist() == [3] * len(output.output_ids)


def test_ids_past_the_tokenizer_are_never_drawn():
    model = tiny_model()
    with torch.no_grad():
        model.embed_tokens.weight[LIMIT:].mul_(50)
    outputs = generated(generator(model), [request(prompt(9), n=8, max_new_tokens=30)])
    assert max(int(output.output_ids.max()) for output in outputs) < LIMIT


def test_new_weights_are_another_version_and_other_numbers():
    engine = generator()
    before = generated(engine, [request(prompt(9))])[0]
    publish(engine, tiny_model(seed=2), 4)
    after = generated(engine, [request(prompt(9))])[0]
    assert after.weight_version[0] == 4
    assert after.output_log_probs.tolist() != before.output_log_probs.tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tie", [True, False])
def test_what_was_written_is_digested_again_under_our_names(family, tie):
    model = tiny_model(family, tie_word_embeddings=tie)
    engine, written = generator(model), digest_weights(named_weights(model))
    assert engine.digest() == written
    assert not engine.places()
    for name, tensor in engine._model.named_parameters():
        element = tensor.detach().view(-1)[-1:]
        kept = element.clone()
        element.add_(1)
        assert len(engine.digest().differences(written)) == 1, f"{name} is not digested"
        element.copy_(kept)


def test_weights_of_another_shape_are_refused_and_leave_nothing_that_could_generate():
    engine = generator()
    with pytest.raises(WeightSyncError, match="gate_up"):
        publish(engine, tiny_model(intermediate_size=64), 4)
    assert engine.weight_version is None
    with pytest.raises(WeightSyncError, match="publish to it"):
        generated(engine, [request(prompt(9))])


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"repetition_penalty": 1.2}, "penalties"),
        ({"stop": ("x",)}, "stop_strings"),
        ({"logit_bias": {3: 1.0}}, "logit_bias"),
    ],
)
def test_what_it_computes_otherwise_is_refused(params, name):
    with pytest.raises(InvalidRequest, match=name):
        generated(generator(), [request(prompt(9), **params)])


def test_an_aborted_completion_ends_early():
    engine = generator()

    async def aborted():
        waits = [asyncio.create_task(outputs_of(engine, request(prompt(9), rid=r))) for r in "ab"]
        await asyncio.sleep(0)
        await engine.abort("b")
        return [output for outputs in await asyncio.gather(*waits) for output in outputs]

    whole, cut = asyncio.run(aborted())
    assert (whole.finish_reason.kind, len(whole.output_ids)) == ("length", 20)
    assert (cut.finish_reason.kind, len(cut.output_ids)) == ("abort", 1)
