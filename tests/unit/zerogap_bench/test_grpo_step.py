from types import SimpleNamespace

from zerogap_bench.grpo_step import GrpoStep
from zerogap_bench.peers import Choice
from zerogap_bench.shapes import RunShape


def notes(shape, *, has_run=True):
    step = GrpoStep([shape], repeats=1, choice=Choice((), None), trl_micro_batch=8)
    if has_run:
        step._runs[shape].trl.append(SimpleNamespace())
    return step.report()["notes"]


def test_a_micro_batch_that_does_not_divide_the_sequences_is_made_smaller_and_said():
    (note,) = notes(RunShape(3, 4, 8))
    assert note.startswith(
        "3x4x8: TRL computed 4 sequences at a time, because 8 does not divide 12;"
    )


def test_a_micro_batch_that_fits_or_was_not_run_needs_no_word():
    assert notes(RunShape(2, 4, 8)) == []
    assert notes(RunShape(3, 4, 8), has_run=False) == []
