"""Packing keeps every target once, and a row sees its own sample's past and nothing else."""

from collections import Counter

import numpy as np
from helpers.planted_fault import planted_fault
from helpers.train_batches import make_sample
from hypothesis import given
from hypothesis import strategies as st

from zerogap.kernels import PAGE_SIZE
from zerogap.train import MicroBatch, pack

# Few different ids, so that samples of different groups often share prefixes by accident.
IDS = st.integers(0, 2)


@st.composite
def samples(draw):
    result = []
    for g in range(draw(st.integers(1, 4))):
        prompt = draw(st.lists(IDS, min_size=1, max_size=40))
        for i in range(draw(st.integers(1, 4))):
            # Now and then a sibling whose context differs, as after an environment's turn.
            own = draw(st.one_of(st.just(prompt), st.lists(IDS, min_size=1, max_size=20)))
            completion = draw(st.lists(IDS, min_size=1, max_size=20))
            if result and result[-1].group_id == f"g{g}" and draw(st.booleans()):
                # A branch: it leaves an earlier sibling somewhere, with other tokens trained.
                earlier = draw(st.sampled_from([s for s in result if s.group_id == f"g{g}"]))
                own = earlier.token_ids[: earlier.num_prompt_tokens].tolist()
                followed = earlier.token_ids[len(own) :].tolist()
                completion = followed[: draw(st.integers(0, len(followed)))] + completion
            size = len(completion)
            mask = draw(st.lists(st.booleans(), min_size=size, max_size=size))
            result.append(
                make_sample(own, completion, group_id=f"g{g}", index=i, loss_mask=mask)
            )  # fmt: skip
    return draw(st.permutations(result))


def visible_rows(batch: MicroBatch) -> list[np.ndarray]:
    """For each row, the rows it attends to, in the order of positions."""
    plan, layout = batch.layout.plan, batch.layout
    row_in_slot = {
        int(slot): int(row)
        for slot, row in zip(layout.write_slot_W, layout.write_row_W, strict=True)
    }
    result = []
    for row in range(batch.num_rows):
        pages = plan.page_table_BP[plan.row_sequence_T[row]].tolist()
        last = int(plan.row_position_T[row])
        slots = [pages[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in range(last + 1)]
        result.append(np.array([row_in_slot[slot] for slot in slots]))
    return result


def last_target(sample) -> int:
    """Its position, which is the number of rows that the sample needs; 0 without targets."""
    return int(np.flatnonzero(sample.loss_mask).max(initial=0))


def check_rows(batch: MicroBatch, given_samples):
    """Each target's source row sees exactly the sample's tokens before it, and so do all rows it sees."""
    visible = visible_rows(batch)
    for row, seen in enumerate(visible):
        assert seen[-1] == row, "a row sees itself last"
        assert batch.positions_T[row] == len(seen) - 1
        assert (batch.positions_T[seen] == np.arange(len(seen))).all()
        for position, earlier in enumerate(seen):
            assert (visible[earlier] == seen[: position + 1]).all(), "a key saw another past"
    for row, target, i, position in zip(
        batch.source_row_R, batch.target_R, batch.sample_R, batch.position_R, strict=True
    ):
        sample = given_samples[i]
        assert target == sample.token_ids[position]
        seen_ids = batch.token_ids_T[visible[row]]
        assert (seen_ids == sample.token_ids[:position]).all()


@given(samples(), st.integers(1, 150), st.booleans())
def test_every_target_occurs_exactly_once(given_samples, max_rows, share):
    targets = [s.loss_mask for s in given_samples]
    batches = pack(given_samples, targets, max_rows=max_rows, share_prompts=share)
    found = Counter(
        (int(i), int(p)) for b in batches for i, p in zip(b.sample_R, b.position_R, strict=True)
    )
    wanted = {(i, int(p)) for i, mask in enumerate(targets) for p in np.flatnonzero(mask)}
    assert set(found) == wanted
    assert set(found.values()) <= {1}


@given(samples(), st.integers(1, 150), st.booleans())
def test_a_row_sees_its_own_past_and_nothing_else(given_samples, max_rows, share):
    targets = [s.loss_mask for s in given_samples]
    for batch in pack(given_samples, targets, max_rows=max_rows, share_prompts=share):
        check_rows(batch, given_samples)


@given(samples(), st.integers(1, 150), st.booleans())
def test_only_a_single_path_exceeds_the_budget(given_samples, max_rows, share):
    targets = [s.loss_mask for s in given_samples]
    for batch in pack(given_samples, targets, max_rows=max_rows, share_prompts=share):
        longest = max(last_target(given_samples[i]) for i in set(batch.sample_R.tolist()))
        assert batch.num_rows <= max_rows or batch.num_rows == longest


@given(samples(), st.integers(1, 150))
def test_every_distinct_prefix_is_computed_once(given_samples, max_rows):
    targets = [s.loss_mask for s in given_samples]
    prefixes = {
        (s.group_id, s.token_ids[: row + 1].tobytes())
        for s in given_samples
        for row in range(last_target(s))
    }
    whole = pack(given_samples, targets, max_rows=10_000)
    assert sum(b.num_rows for b in whole) == len(prefixes)
    assert sum(b.num_rows_repeated for b in whole) == 0
    parts = pack(given_samples, targets, max_rows=max_rows)
    assert sum(b.num_rows - b.num_rows_repeated for b in parts) == len(prefixes)


@given(samples())
def test_pages_are_shared_wherever_all_their_rows_are(given_samples):
    for batch in pack(given_samples, [s.loss_mask for s in given_samples], max_rows=10_000):
        plan, visible = batch.layout.plan, visible_rows(batch)
        ends = {int(plan.row_sequence_T[row]): row for row in range(batch.num_rows)}
        pages = [
            (page, tuple(visible[row][page * PAGE_SIZE : (page + 1) * PAGE_SIZE]))
            for row in ends.values()
            for page in range(-(-len(visible[row]) // PAGE_SIZE))
        ]
        assert batch.layout.num_pages == len(set(pages))


@given(samples())
def test_sharing_saves_what_it_says(given_samples):
    targets = [s.loss_mask for s in given_samples]
    shared = pack(given_samples, targets, max_rows=10_000, share_prompts=True)
    alone = pack(given_samples, targets, max_rows=10_000, share_prompts=False)
    rows = [sum(b.num_rows for b in batches) for batches in (shared, alone)]
    assert rows[1] - rows[0] == sum(b.num_rows_saved for b in shared)
    assert sum(b.num_rows_saved for b in alone) == 0


@given(samples())
def test_packing_is_a_function_of_its_input(given_samples):
    targets = [s.loss_mask for s in given_samples]
    first, second = (pack(given_samples, targets, max_rows=60) for _ in range(2))
    assert [b.token_ids_T.tolist() for b in first] == [b.token_ids_T.tolist() for b in second]
    assert [b.source_row_R.tolist() for b in first] == [b.source_row_R.tolist() for b in second]


def test_the_check_of_rows_notices_a_leak():
    siblings = [make_sample([1, 2, 0], [i, 2], index=i) for i in range(2)]
    (batch,) = pack(siblings, [s.loss_mask for s in siblings], max_rows=100)
    check_rows(batch, siblings)
    second_own_row = batch.num_rows - 1
    with planted_fault("a row of the second sibling predicts a token of the first"):
        batch.source_row_R[1] = second_own_row
        check_rows(batch, siblings)
    (batch,) = pack(siblings, [s.loss_mask for s in siblings], max_rows=100)
    with planted_fault("a sibling's row reads the other sibling's key"):
        batch.layout.write_row_W[batch.layout.write_row_W == second_own_row] = second_own_row - 1
        check_rows(batch, siblings)
