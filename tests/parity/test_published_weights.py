"""An engine with its own copy of the weights generates with the trainer's, also after its memory was released.

A tensor that is not sent shows twice: by name in the digest, and in the log-probs of engine and trainer. Covers every
kind of tensor: embedding, tied and untied head, norms, projections, biases.
"""

import numpy as np
import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tiny_engine import blind_to_changes, prompt, request, tiny_engine
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT
from helpers.train_batches import train_on

from zerogap.config import TrainConfig
from zerogap.foreign import TransformersGenerator
from zerogap.kernels import round_bf16
from zerogap.models import CausalLM
from zerogap.train import NativeTrainer
from zerogap.types import Sample
from zerogap.weights import (
    CopiedWeights,
    Publisher,
    WeightVersions,
    copy_weights,
    digest_weights,
    named_weights,
    unrounded,
    weight_fingerprint,
)

FAMILIES = [("llama", True), ("llama", False), ("qwen2", False), ("qwen2", True), ("qwen3", True)]


class TwoSides:
    """A trainer, an engine on a copy, and tokens that both score."""

    def __init__(self, family: str, *, is_tied: bool):
        self.model = tiny_model(family, tie_word_embeddings=is_tied)
        self.engines_model = tiny_model(family, tie_word_embeddings=is_tied, seed=9)
        self.engine = tiny_engine(self.engines_model)
        self.versions = WeightVersions()
        self.publisher = Publisher(CopiedWeights(self.model), self.engine, self.versions)
        self.trainer = NativeTrainer(
            self.model,
            TrainConfig(learning_rate=1e-3),
            total_steps=4,
        )
        self.publisher.publish(0)
        outputs = self.engine.generate([request(prompt(21), n=3)])
        self.samples = [Sample.from_output(o, group_id="g", temperature=1.0) for o in outputs]

    def engine_scores(self) -> list[np.ndarray]:
        return [self.engine.score(s.token_ids, start=s.num_prompt_tokens) for s in self.samples]

    def trainer_scores(self) -> list[np.ndarray]:
        scored = self.trainer.score(self.samples)
        return [x[s.num_prompt_tokens :] for x, s in zip(scored, self.samples, strict=True)]

    def check(self) -> None:
        """Digests and the log-probs of every sampled token, bit for bit."""
        EXACT.check(self.engine_scores(), self.trainer_scores())
        assert self.engine.digest() == digest_weights(named_weights(self.model))


@pytest.mark.parametrize(("family", "is_tied"), FAMILIES)
def test_each_tensor_that_is_not_sent_shows_in_the_digest_by_name_and_in_the_log_probs(
    family, is_tied
):
    sides = TwoSides(family, is_tied=is_tied)
    sides.check()
    for version, (name, tensor) in enumerate(named_weights(sides.model).items(), start=1):
        before = sides.engine_scores()
        perturb(tensor)
        trained = digest_weights(named_weights(sides.model))
        assert sides.engine.digest().differences(trained) == (name,)
        with planted_fault(f"{name} is not sent"):
            EXACT.check(sides.engine_scores(), sides.trainer_scores())
        sides.publisher.publish(version)
        sides.check()
        with planted_fault(f"the engine does not read {name}"):
            EXACT.check(sides.engine_scores(), before)


def test_the_cases_cover_every_kind_of_tensor():
    kinds = {
        name.split(".", 2)[-1] if name.startswith("layers") else name
        for family, is_tied in FAMILIES
        for name in named_weights(tiny_model(family, tie_word_embeddings=is_tied))
    }
    assert {"embed_tokens.weight", "lm_head.weight", "norm.weight", "qkv.bias"} < kinds
    assert {"input_norm.weight", "q_norm.weight", "qkv.weight", "down.weight"} < kinds


@pytest.mark.parametrize("name", ["embed_tokens.weight", "layers.0.qkv.bias"])
def test_a_tensor_that_is_changed_in_the_engine_alone_shows_too(name):
    sides = TwoSides("qwen2", is_tied=True)
    perturb(named_weights(sides.engines_model)[name])
    blind_to_changes(sides.engine)
    trained = digest_weights(named_weights(sides.model))
    assert sides.engine.digest().differences(trained) == (name,)
    with planted_fault("the engine's own tensor is another"):
        sides.check()
    sides.publisher.publish(1)
    sides.check()


def test_weights_that_change_while_the_engines_memory_is_away_are_the_ones_it_wakes_with():
    sides = TwoSides("qwen3", is_tied=True)
    before = sides.engine_scores()
    sides.engine.release_memory_occupation()
    scored = [sample.scored(float(i)) for i, sample in enumerate(sides.samples)]
    train_on(sides.trainer, scored)
    published = sides.publisher.publish(1)
    sides.engine.resume_memory_occupation()
    assert published.digest.hex == weight_fingerprint(sides.model) == sides.versions.digest_of(1)
    sides.check()
    with planted_fault("the engine wakes with the weights it went to sleep with"):
        EXACT.check(sides.engine_scores(), before)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("family", "is_tied"), [("qwen2", False), ("qwen3", True)])
def test_a_foreign_engine_with_another_layout_is_published_to_and_checked_the_same_way(
    family, is_tied, dtype
):
    model = tiny_model(family, tie_word_embeddings=is_tied)
    engine = TransformersGenerator(model.config, eos_token_ids=(2,), dtype=dtype)
    rounding = round_bf16 if dtype == "bf16" else unrounded
    publisher = Publisher(CopiedWeights(model, rounding=rounding), engine, WeightVersions())
    for version in range(2):
        perturb(named_weights(model)["layers.1.qkv.weight"])
        published = publisher.publish(version)
        assert engine.weight_version == version
        assert published.digest == digest_weights(named_weights(model), rounding=rounding)
        assert not published.is_shared


def test_an_engine_of_another_precision_has_the_bits_of_a_model_loaded_in_it():
    model = tiny_model("qwen2", tie_word_embeddings=False)
    engine = tiny_engine(CausalLM(model.config, precision="bf16"))
    Publisher(CopiedWeights(model, rounding=round_bf16), engine, WeightVersions()).publish(0)
    loaded = CausalLM(model.config, precision="bf16")
    copy_weights(((n, round_bf16(t)) for n, t in named_weights(model).items()), named_weights(loaded))  # fmt: skip
    EXACT.check(engine.score(prompt(30)), tiny_engine(loaded).score(prompt(30)))
    with planted_fault("the engine computes in the trainer's precision"):
        EXACT.check(engine.score(prompt(30)), tiny_engine(model).score(prompt(30)))


@torch.no_grad()
def perturb(tensor: torch.Tensor) -> None:
    """A change of a few percent in every element."""
    generator = torch.Generator().manual_seed(3)
    tensor.add_(0.02 * torch.randn(tensor.shape, generator=generator))
