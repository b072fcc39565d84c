"""Answers that cannot train are refused before the first step."""

import json

import pytest
from helpers.recorded_run import make_run

from zerogap.errors import DataError


def test_an_answer_that_does_not_fit_the_model_is_refused_before_the_first_step(tmp_path):
    path = tmp_path / "train.jsonl"
    lines = [{"prompt": "a", "answer": "b"}, {"prompt": "c", "answer": "d" * 500}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match=r"(?s)1 of 2 training prompts.*503 tokens"):
        make_run(
            tmp_path / "run", steps=2, loss__kind="sft", data__kind="jsonl", reward__kind="exact",
            data__path=str(path), data__answer_field="answer",
        )  # fmt: skip
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
