import io

from rich.console import Console

from zerogap.obs import ConsoleSink


def _lines(*records, total_steps=20):
    console = Console(file=io.StringIO(), width=60)
    sink = ConsoleSink(console, total_steps=total_steps)
    for step, metrics in records:
        sink.write(step, step, metrics)
    return console.file.getvalue().splitlines()


def test_a_step_is_one_line_even_on_a_narrow_terminal():
    metrics = {
        "reward/mean": 0.4375,
        "eval/reward/mean": 0.5,
        "gap/total/mean": 0.0,
        "gap/trained/max": 0.0,
        "staleness/max": 0,
        "engine/tokens_per_s": 1234.4,
        "step/time_s": 8.04,
        "step/generate_s": 5.0,
        "step/train_s": 3.0,
    }
    assert _lines((2, metrics)) == [
        "step  2/20  reward 0.438  eval 0.500  gap 0.0  max 0.0  stale 0  tok/s 1,234  "
        "8.0 s (gen 5.0, train 3.0)  ETA 2 min 25 s"
    ]


def test_the_gap_says_how_many_samples_and_tokens_it_is_of():
    metrics = {"gap/total/mean": 0.0, "gap/num_samples": 4, "gap/num_tokens": 1234, "gap/trained/max": 0.0, "gap/trained/num_tokens": 9999}  # fmt: skip
    (line,) = _lines((1, metrics))
    assert "gap 0.0 (4 samples, 1,234 tokens)  max 0.0 (9,999 tokens)" in line


def test_a_gap_that_is_not_zero_never_looks_like_zero():
    (line,) = _lines((1, {"gap/total/mean": 1e-9}))
    assert "gap 1.0e-09" in line


def test_what_was_not_measured_is_left_out():
    assert _lines((0, {"eval/reward/mean": 0.25})) == ["step  0/20  eval 0.250"]


def test_the_last_step_has_no_time_left():
    *_, last = _lines(*((s, {"step/time_s": 1.0}) for s in (1, 2)), total_steps=2)
    assert last == "step 2/2  1.0 s"


def test_the_estimate_follows_the_last_ten_steps():
    records = [(s, {"step/time_s": 100.0 if s <= 5 else 1.0}) for s in range(1, 16)]
    assert _lines(*records)[-1].endswith("ETA 5.0 s")
