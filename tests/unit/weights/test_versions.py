import numpy as np
import pytest
from helpers.samples import make_output
from hypothesis import given
from hypothesis import strategies as st

from zerogap.errors import UnknownWeightVersion, WeightSyncError
from zerogap.types import Sample, Source
from zerogap.weights import WeightVersions


def known(*versions: int) -> WeightVersions:
    registry = WeightVersions()
    for version in versions:
        registry.record(version, f"digest of {version}")
    return registry


def sample_of(*versions: int) -> Sample:
    """One token a version."""
    ids = range(60, 60 + len(versions))
    output = make_output(output_ids=ids, weight_version=np.array(versions))
    return Sample.from_output(output, group_id="g", temperature=1.0)


def test_tokens_of_known_versions_are_admitted():
    known(0, 1, 2).admit([sample_of(0, 0, 1), sample_of(2)])
    known().admit([])


def test_one_token_of_an_unknown_version_is_refused_with_its_place_and_what_is_known():
    with pytest.raises(
        UnknownWeightVersion,
        match=r"rollout g/0: .* position 4 .* version 3, .*known versions: 0, 1",
    ):
        known(0, 1).admit([sample_of(0), sample_of(0, 1, 3, 3)])
    with pytest.raises(UnknownWeightVersion, match="known versions: none"):
        known().admit([sample_of(0)])


def test_tokens_that_nobody_sampled_need_no_version():
    reply = sample_of(1).append(np.array([5, 6]), source=Source.ENVIRONMENT)
    known(1).admit([reply])


def test_a_number_never_stands_for_two_sets_of_weights():
    registry = known(4)
    registry.record(4, "digest of 4")
    with pytest.raises(WeightSyncError, match=r"version 4 was published with digest .* of 4 and"):
        registry.record(4, "another")
    assert registry.digest_of(4) == "digest of 4"
    with pytest.raises(WeightSyncError, match="-1 is negative"):
        registry.record(-1, "any")


def test_a_long_run_lists_only_its_last_versions():
    with pytest.raises(UnknownWeightVersion, match=r"the last of 100: 92, .*, 99\)"):
        known(*range(100)).digest_of(100)


@given(
    published=st.sets(st.integers(0, 8)),
    rows=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=4),
)
def test_what_is_admitted_is_what_was_published_before_and_after_a_resume(published, rows):
    registry, resumed = known(*published), WeightVersions()
    resumed.load_state_dict(registry.state_dict())
    samples = [sample_of(*row) for row in rows]
    for one in (registry, resumed):
        if {version for row in rows for version in row} <= published:
            one.admit(samples)
        else:
            with pytest.raises(UnknownWeightVersion):
                one.admit(samples)
        assert [version for version in range(10) if version in one] == sorted(published)
