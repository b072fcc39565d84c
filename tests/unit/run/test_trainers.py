"""Errors while a recipe's trainer is built."""

import pytest
from helpers.recipes import TINY_POLICY, run_config

from zerogap.errors import ModelError
from zerogap.run.policy import load_policy
from zerogap.run.trainers import build_trainer


def test_a_teacher_that_is_not_there_is_told_by_its_key():
    config = run_config(model=TINY_POLICY, teacher={"path": "nowhere"})
    policy = load_policy(config.model, seed=0)
    with pytest.raises(ModelError, match=r"teacher\.path = 'nowhere' cannot be loaded: .* give a"):
        build_trainer(config, policy)
