import torch
from helpers.sequences import make_sequence

from zerogap.engine.sequence import Sequence
from zerogap.engine.siblings import SiblingIndex


def sequence(*, prompt=(1, 2, 3)) -> Sequence:
    return make_sequence(prompt)


def test_sequences_with_one_prompt_are_siblings_across_requests():
    index = SiblingIndex()
    first, second, other = sequence(), sequence(), sequence(prompt=(1, 2, 4))
    for member in (first, second, other):
        index.join(member)
    assert index.of(first) is index.of(second)
    assert index.of(first) is not index.of(other)
    assert index.of(first).num_waiting == 2


def test_a_lone_leader_keeps_nothing():
    index = SiblingIndex()
    leader = sequence()
    index.join(leader)
    index.lead(leader)
    assert index.of(leader).is_computing
    assert index.waiting_for(leader) is None
    assert list(index) == []


def test_what_is_kept_is_released_with_the_last_fork():
    index = SiblingIndex()
    leader, second, third = sequence(), sequence(), sequence()
    for member in (leader, second, third):
        index.join(member)
    index.lead(leader)
    siblings = index.waiting_for(leader)
    siblings.hidden_D, siblings.pages = torch.zeros(4), [8, 9]
    assert siblings.is_ready
    assert index.leave(second) == []
    assert index.leave(third) == [8, 9]
    assert list(index) == []


def test_a_leader_that_stops_halfway_makes_room_for_another():
    index = SiblingIndex()
    leader, second = sequence(), sequence()
    index.join(leader)
    index.join(second)
    index.lead(leader)
    index.leader_stopped(leader)
    siblings = index.of(second)
    assert not siblings.is_computing
    index.lead(second)
    assert siblings.leader is second


def test_a_leader_that_stops_after_its_prompt_changes_nothing_that_is_kept():
    index = SiblingIndex()
    leader, second = sequence(), sequence()
    index.join(leader)
    index.join(second)
    index.lead(leader)
    siblings = index.waiting_for(leader)
    siblings.hidden_D, siblings.pages = torch.zeros(4), [8]
    leader.is_running = True
    assert not siblings.is_orphaned
    leader.is_running = False
    index.leader_stopped(leader)
    assert siblings.is_ready
    assert siblings.is_orphaned


def test_an_index_is_empty_when_all_are_gone():
    index = SiblingIndex()
    leader, second = sequence(), sequence()
    index.join(leader)
    index.join(second)
    index.leave(second)
    index.lead(leader)
    index.leader_stopped(leader)
    assert list(index) == []
