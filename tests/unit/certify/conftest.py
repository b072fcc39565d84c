"""A policy of two layers with the byte tokenizer, and what it generated; tests leave no trace on them."""

import pytest
from helpers.recipes import TINY_POLICY, run_config

from zerogap.certify import Subjects
from zerogap.certify.probe_batch import probe_requests, samples_of
from zerogap.run.policy import load_policy


@pytest.fixture
def subjects() -> Subjects:
    config = run_config(model=TINY_POLICY)
    return Subjects(policy=load_policy(config.model, seed=0), config=config)


@pytest.fixture
def requests(subjects):
    params = subjects.config.rollout.sampling.params()
    return probe_requests(subjects.policy.tokenizer, params, max_positions=512)


@pytest.fixture
def outputs(subjects, requests):
    return subjects.engine().generate(requests)


@pytest.fixture
def samples(outputs):
    return samples_of(outputs, 1.0)
