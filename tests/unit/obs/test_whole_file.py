import pytest

from zerogap.obs import written_whole


def test_a_file_is_replaced_when_it_is_complete_and_only_then(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("before")
    with written_whole(path) as partial:
        partial.write_text("half")
        assert path.read_text() == "before"
    assert path.read_text() == "half"
    with pytest.raises(UnicodeEncodeError), written_whole(path) as partial:
        partial.write_text("never\ud800", encoding="utf-8")
    assert path.read_text() == "half"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_the_name_of_a_folder_is_refused_and_nothing_is_left(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError), written_whole(tmp_path / "folder") as partial:
        partial.write_text("x")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
