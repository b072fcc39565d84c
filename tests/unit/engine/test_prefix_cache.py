import numpy as np

from zerogap.engine.prefix_cache import PrefixCache, block_at
from zerogap.kernels import PAGE_SIZE


def root_of(cache: PrefixCache):
    return cache.match(ids(length=0), 0).node


def ids(*, length: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + length, dtype=np.int32)


def store(cache: PrefixCache, token_ids: np.ndarray) -> list[int]:
    """What a sequence does that computes all its ids and ends; returns its pages."""
    num_full = len(token_ids) // PAGE_SIZE
    tail = block_at(token_ids, num_full, len(token_ids))
    pages = cache.allocate(num_full + bool(tail))
    blocks = [block_at(token_ids, i, len(token_ids)) for i in range(num_full)]
    node, held = cache.publish(root_of(cache), blocks, pages[:num_full])
    if tail:
        cache.publish_tail(node, tail, pages[-1])
    cache.pool.release([*held, *pages[num_full:]])
    return pages


def assert_whole(cache: PrefixCache, holders=None) -> None:
    zeros = np.zeros(cache.pool.num_pages, np.int64)
    assert cache.problems(zeros if holders is None else holders) == []


def test_full_pages_are_found_by_reference_and_the_rest_of_a_page_by_copy():
    cache = PrefixCache(8)
    pages = store(cache, ids(length=40))
    match = cache.match(ids(length=40), limit=39)
    assert match.pages == pages[:2]
    assert (match.partial_page, match.num_partial, match.num_tokens) == (pages[2], 7, 39)
    assert_whole(cache)


def test_a_prefix_may_end_inside_a_page_that_goes_on_differently():
    cache = PrefixCache(8)
    pages = store(cache, ids(length=32))
    other = ids(length=32)
    other[20:] = 99
    match = cache.match(other, limit=31)
    assert match.pages == pages[:1]
    assert (match.partial_page, match.num_partial) == (pages[1], 4)


def test_the_closest_of_many_children_is_found():
    cache = PrefixCache(16)
    texts = [[5, 1, 1, 1], [5, 1, 2, 2], [5, 2, 2, 2], [6, 0, 0, 0], [5, 1], [5, 1, 2, 9]]
    pages = {tuple(text): store(cache, np.array(text, np.int32))[0] for text in texts}
    match = cache.match(np.array([5, 1, 2, 9, 9], np.int32), limit=5)
    assert (match.partial_page, match.num_partial) == (pages[5, 1, 2, 9], 4)
    assert cache.match(np.array([7, 1], np.int32), limit=2).num_tokens == 0
    assert_whole(cache)


def test_a_known_page_replaces_the_callers_own():
    cache = PrefixCache(8)
    first = store(cache, ids(length=16))
    second = cache.allocate(1)
    _, held = cache.publish(root_of(cache), [block_at(ids(length=16), 0, 16)], second)
    assert held == first
    assert (cache.pool.num_holders(first[0]), cache.pool.num_holders(second[0])) == (1, 0)
    cache.pool.release(held)
    assert_whole(cache)


def test_the_longest_unused_leaf_is_evicted_first_and_never_a_page_in_the_middle():
    cache = PrefixCache(4)
    old = store(cache, ids(length=32))
    new = store(cache, ids(length=32, start=100))
    taken = cache.allocate(1)
    assert taken == [old[1]]
    assert cache.match(ids(length=33), limit=32).pages == old[:1]
    assert cache.match(ids(length=33, start=100), limit=32).pages == new
    assert cache.allocate(1) == [old[0]]
    cache.pool.release([*taken, old[0]])
    assert_whole(cache)


def test_held_pages_are_not_evicted():
    cache = PrefixCache(2)
    pages = store(cache, ids(length=32))
    cache.pool.hold(pages[:1])
    assert cache.allocate(2) is None
    assert cache.match(ids(length=33), limit=32).pages == pages, "a refused allocation evicted"
    assert cache.allocate(1) == [pages[1]]


def test_nothing_of_another_namespace_is_found_and_its_pages_are_free():
    cache = PrefixCache(4)
    pages = store(cache, ids(length=40))
    cache.pool.hold(pages[:1])
    cache.start_namespace()
    assert cache.match(ids(length=40), limit=39).num_tokens == 0
    assert cache.pool.num_free == 3
    cache.pool.release(pages[:1])
    assert cache.pool.num_free == 4
    assert_whole(cache)


def test_a_tail_that_is_known_already_takes_no_page():
    cache = PrefixCache(4)
    store(cache, ids(length=12))
    store(cache, ids(length=5))
    assert (cache.pool.num_free, cache.pool.num_idle) == (3, 1)


def test_damage_to_the_tree_is_noticed():
    cache = PrefixCache(4)
    pages = store(cache, ids(length=32))
    assert_whole(cache)
    only_the_second = np.zeros(4, np.int64)
    cache.pool.hold([pages[1]])
    only_the_second[pages[1]] = 1
    assert any("more holders than page" in text for text in cache.problems(only_the_second))
    cache.pool.release([pages[1]])
    root_of(cache).ordered.clear()
    del cache._node_of_page[pages[0]]
    assert len(cache.problems(np.zeros(4, np.int64))) == 1
