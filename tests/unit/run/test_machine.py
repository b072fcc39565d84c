import pytest

from zerogap.run.machine import code_differences, machine_differences

HERE = {
    "processor": "a chip",
    "threads": 2,
    "kernels": "native C++ (2 threads)",
    "packages": {"torch": "2.13.0", "numpy": "2.0"},
    "zerogap": "0.1.0",
    "commit": "abc",
    "platform": "Linux 6",
}


def test_a_machine_is_of_its_own_kind():
    assert machine_differences(HERE, dict(HERE)) == ()
    assert code_differences(HERE, dict(HERE)) == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"processor": "another"}, "processor was a chip, is another"),
        ({"threads": 4, "kernels": "native C++ (4 threads)"}, "threads was 2, is 4"),
        ({"kernels": "torch"}, "kernels was native C++ (2 threads), is torch"),
        ({"packages": {"torch": "2.14.0"}}, "torch was 2.13.0, is 2.14.0"),
    ],
)
def test_what_bits_depend_on_makes_another_kind(change, says):
    assert machine_differences(HERE, HERE | change) == (says,)


def test_what_they_do_not_depend_on_does_not():
    assert machine_differences(HERE, HERE | {"platform": "Linux 7", "commit": "def"}) == ()
    assert code_differences(HERE, HERE | {"commit": "def"}) == ("commit was abc, is def",)
