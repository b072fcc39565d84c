"""New weights while sequences run: each token keeps the version and the log-prob of the pass that sampled it.

Later prompts find no pages of older weights, and recomputation after a retraction changes nothing that was reported.
"""

import numpy as np
import pytest
from helpers.planted_fault import planted_fault
from helpers.tiny_engine import prompt, reported, request, tiny_engine
from helpers.tiny_models import randomize, tiny_model
from helpers.tolerance import EXACT

from zerogap.types import Sample
from zerogap.weights import CopiedWeights, Publisher, SharedWeights, WeightVersions

OLD, NEW = 1, 2
"""Seeds of two versions' weights."""
NUM_OLD = 8
"""Number of tokens that the old weights draw."""


def weights_of(version_seed: int):
    """A new model with the weights of this seed."""
    return tiny_model(seed=version_seed)


class Changing:
    """An engine whose weights can change between any two steps."""

    def __init__(self, *, is_shared: bool = True, **limits):
        self.model = weights_of(OLD)
        self.engine = tiny_engine(self.model if is_shared else weights_of(9), **limits)
        source = SharedWeights(self.model) if is_shared else CopiedWeights(self.model)
        self.versions = WeightVersions()
        self.publisher = Publisher(source, self.engine, self.versions)
        self.publisher.publish(0)

    def publish_new(self) -> None:
        self.engine.begin_weight_update()
        randomize(self.model, NEW)
        self.publisher.publish(1)

    def generate(self, requests, *, pause: str | None, after: int = NUM_OLD):
        """Run all requests; publish new weights once ``after`` tokens per sequence are drawn."""

        def change(progress):
            if progress.num_tokens >= after * progress.num_sequences and 1 not in self.versions:
                if pause:
                    self.engine.pause_generation(pause)
                self.publish_new()
                self.engine.continue_generation()

        return self.engine.generate(requests, on_progress=change)


# ------------------------------------------------------------ nothing old is found


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("length", [16, 37])
def test_a_prompt_that_two_versions_see_is_computed_by_each(length, is_shared):
    asked = [request(prompt(length), n=2), request(prompt(length)[:20], sampling_seed=3)]
    expected = reported(tiny_engine(weights_of(NEW)).generate(asked))

    def after_new_weights(*, keeps_pages: bool):
        changing = Changing(is_shared=is_shared)
        changing.engine.generate(asked)
        assert changing.engine.generate(asked)[0].num_cached_tokens == length - 1
        if keeps_pages:
            changing.engine._scheduler.start_namespace = lambda: None
        changing.publish_new()
        return changing.engine.generate(asked)

    outputs = after_new_weights(keeps_pages=False)
    assert outputs[0].num_cached_tokens == 0
    EXACT.check(reported(outputs), expected)
    with planted_fault("pages of the old version are found"):
        EXACT.check(reported(after_new_weights(keeps_pages=True)), expected)


# ------------------------------------------------------------ what was reported stays


@pytest.mark.parametrize("is_shared", [True, False])
def test_after_a_retraction_each_token_has_the_log_prob_of_the_weights_that_drew_it(is_shared):
    asked = [request(prompt(21), n=3), request(prompt(37, 3), sampling_seed=4)]
    undisturbed = tiny_engine(weights_of(OLD)).generate(asked)
    outputs = Changing(is_shared=is_shared).generate(asked, pause="retract")
    new = tiny_engine(weights_of(NEW))
    for output, old in zip(outputs, undisturbed, strict=True):
        cut = check_versions(output, [0, 1])
        assert output.num_retractions == 1
        EXACT.check(output.output_ids[:cut], old.output_ids[:cut])
        EXACT.check(output.output_log_probs[:cut], old.output_log_probs[:cut])
        ids = [*output.prompt_ids, *output.output_ids]
        again = new.score(ids, start=len(output.prompt_ids))
        EXACT.check(output.output_log_probs[cut:], again[cut:])
        with planted_fault("log-probs of the pass after the retraction replace the sampled ones"):
            EXACT.check(output.output_log_probs[:cut], again[:cut])


def test_in_place_the_old_tokens_stay_and_the_new_ones_are_marked():
    asked = [request(prompt(21), n=3)]
    undisturbed = tiny_engine(weights_of(OLD)).generate(asked)
    outputs = Changing().generate(asked, pause=None)
    new = tiny_engine(weights_of(NEW))
    for output, old in zip(outputs, undisturbed, strict=True):
        cut = check_versions(output, [0, 1])
        EXACT.check(output.output_log_probs[:cut], old.output_log_probs[:cut])
        with planted_fault("keys of old weights are taken for those of new ones"):
            ids = [*output.prompt_ids, *output.output_ids]
            again = new.score(ids, start=len(output.prompt_ids))
            EXACT.check(output.output_log_probs[cut:], again[cut:])


@pytest.mark.parametrize("after", [1, 5, 12])
def test_where_pages_are_short_every_token_has_a_version_and_old_ones_their_bits(after):
    asked = [request(prompt(37), n=5), request(prompt(21, 4), n=4, sampling_seed=4)]
    undisturbed = tiny_engine(weights_of(OLD)).generate(asked)
    changing = Changing(kv_cache_tokens=160, max_running=9)
    outputs = changing.generate(asked, pause=None, after=after)
    assert sum(output.num_retractions for output in outputs) > 0
    assert {tuple(np.unique(o.weight_version)) for o in outputs} >= {(0, 1)}
    for output, old in zip(outputs, undisturbed, strict=True):
        cut = check_versions(output, np.unique(output.weight_version))
        EXACT.check(output.output_log_probs[:cut], old.output_log_probs[:cut])
        EXACT.check(output.output_ids[:cut], old.output_ids[:cut])


def test_a_sample_has_the_version_of_every_token_and_is_admitted():
    changing = Changing()
    outputs = changing.generate([request(prompt(21), n=2)], pause="retract")
    samples = [Sample.from_output(o, group_id="g", temperature=1.0) for o in outputs]
    changing.versions.admit(samples)
    for sample, output in zip(samples, outputs, strict=True):
        cut = check_versions(output, [0, 1])
        expected = [-1] * 21 + [0] * cut + [1] * (20 - cut)
        assert sample.weight_version.tolist() == expected
        assert len(sample) == len(sample.rollout_log_probs) == 21 + 20
        assert np.isfinite(sample.rollout_log_probs[21:]).all()


def check_versions(output, versions) -> int:
    """Every token has one of these versions, which never fall; returns how many tokens version 0 drew."""
    found = output.weight_version
    assert (np.unique(found) == versions).all()
    assert (np.diff(found) >= 0).all()
    assert len(found) == len(output.output_ids) == len(output.output_log_probs) == 20
    return int((found == 0).sum())
