import pytest

from zerogap.config import FileData
from zerogap.data import build_prompt_sets
from zerogap.data.files import Fields, load_jsonl
from zerogap.errors import DataError


def write(tmp_path, *lines):
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"".join(line.encode() + b"\n" for line in lines))
    return path


def load(path, prompt="prompt", answer="answer", rejected=None):
    return load_jsonl(path, Fields(prompt=prompt, answer=answer, rejected=rejected))


def test_questions_messages_and_ids_are_understood(tmp_path):
    items = load(
        write(
            tmp_path,
            '{"prompt": "1+1?", "answer": 2, "level": 3}',
            '{"prompt": [{"role": "user", "content": "hi"}], "answer": "x"}',
            '{"prompt": [256, 104], "answer": "y"}',
        )
    )
    assert [i.item_id for i in items] == ["d-1", "d-2", "d-3"]
    assert (items[0].question, items[0].answer, items[0].metadata) == ("1+1?", "2", {"level": 3})
    assert items[1].messages == ({"role": "user", "content": "hi"},)
    assert items[2].prompt_ids == (256, 104)


def test_bad_lines_are_listed_together_with_their_numbers(tmp_path):
    path = write(
        tmp_path,
        '{"prompt": "ok", "answer": "1"}',
        '{"prompt": "no end',
        "",
        '{"question": "hm", "answer": "1"}',
        '{"prompt": "", "answer": "1"}',
        '{"prompt": "a", "prompt": "b", "answer": "1"}',
        '{"prompt": "a", "answer": NaN}',
        '{"prompt": "a", "answer": [1]}',
        '["prompt"]',
        '{"prompt": [{"content": "no role"}], "answer": "1"}',
    )
    with pytest.raises(DataError) as caught:
        load(path)
    text = str(caught.value)
    assert "has 9 invalid lines" in text
    for expected in (
        "line 2: not valid JSON",
        "line 3: not valid JSON",
        "line 4: no field 'prompt'; the fields are 'question', 'answer'",
        "line 5: 'prompt' is \"\"; it must be non-empty text",
        "line 6: not valid JSON: field 'prompt' occurs twice",
        "line 7: not valid JSON: NaN is not JSON",
        "line 8: 'answer' is [1]; an answer must be text or a number",
        "line 9: a list, not an object",
        "line 10: 'prompt' is [{",
    ):
        assert expected in text


def test_many_bad_lines_are_counted_not_all_shown(tmp_path):
    with pytest.raises(DataError, match="and 5 more"):
        load(write(tmp_path, *["{"] * 15))


def test_a_line_that_is_no_utf8_is_named(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'{"prompt": "a", "answer": "1"}\n{"prompt": "\xff"}\n')
    with pytest.raises(DataError, match="line 2: not valid JSON: 'utf-8' codec"):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "has no prompts"), (b"\n", "has 1 invalid lines")]
)
def test_an_empty_file_is_refused(tmp_path, content, message):
    path = tmp_path / "d.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "none.jsonl")


def test_the_last_lines_are_held_out(tmp_path):
    path = write(tmp_path, *(f'{{"prompt": "q{k}"}}' for k in range(5)))
    sets = build_prompt_sets(FileData(kind="jsonl", path=str(path), eval_size=2, shuffle=False))
    assert [i.question for i in sets.train] == ["q0", "q1", "q2"]
    assert [i.question for i in sets.evaluation] == ["q3", "q4"]
    assert not sets.shuffle
    with pytest.raises(DataError, match="none is left to train on"):
        build_prompt_sets(FileData(kind="jsonl", path=str(path), eval_size=5))


def test_parquet_rows_are_prompts(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    table = pa.table({"prompt": ["a", "b"], "answer": [1, 2], "level": ["x", "y"]})
    parquet.write_table(table, tmp_path / "d.parquet")
    config = FileData(kind="parquet", path=str(tmp_path / "d.parquet"), answer_field="answer")
    train = build_prompt_sets(config).train
    assert [(i.question, i.answer, i.metadata) for i in train] == [
        ("a", "1", {"level": "x"}),
        ("b", "2", {"level": "y"}),
    ]
    (tmp_path / "d.parquet").write_text("no parquet")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        build_prompt_sets(config)


def test_a_rejected_answer_is_read_and_differs_from_the_answer(tmp_path):
    good = '{"prompt": "1+1?", "chosen": "2", "worse": 3, "level": 1}'
    fields = {"answer": "chosen", "rejected": "worse"}
    (item,) = load(write(tmp_path, good), **fields)
    assert (item.answer, item.rejected, item.metadata) == ("2", "3", {"level": 1})
    (item,) = load(write(tmp_path, good), answer="chosen")
    assert (item.rejected, item.metadata) == (None, {"worse": 3, "level": 1})
    equal, missing = '{"prompt": "a", "chosen": "2", "worse": 2}', '{"prompt": "a", "chosen": "2"}'
    with pytest.raises(DataError, match=r"(?s)line 1.*no preference.*line 2: no field 'worse'"):
        load(write(tmp_path, equal, missing), **fields)
