import numpy as np
import pytest

from zerogap.engine.page_pool import PagePool
from zerogap.errors import OutOfPages


def problems(pool: PagePool, holders: list[int], kept: set[int]) -> list[str]:
    is_kept = np.isin(np.arange(pool.num_pages), list(kept))
    return pool.problems(np.array(holders), is_kept)


def test_pages_are_free_held_or_idle():
    pool = PagePool(4)
    first, second = pool.allocate(2)
    pool.hold([first])
    pool.keep(second)
    assert problems(pool, [2, 1, 0, 0], {second}) == []
    pool.release([first, second])
    assert (pool.num_free, pool.num_idle, pool.num_available) == (2, 1, 3)
    pool.release([first])
    assert (pool.num_free, pool.num_idle) == (3, 1)
    assert problems(pool, [0, 0, 0, 0], {second}) == []


def test_the_last_page_of_a_sequence_becomes_idle_first():
    pool = PagePool(3)
    pages = pool.allocate(3)
    for page in pages:
        pool.keep(page)
    pool.release(pages)
    evicted = []
    while pool.num_idle:
        evicted.append(pool.oldest_idle())
        pool.drop(evicted[-1])
    assert evicted == pages[::-1]


def test_holding_an_idle_page_protects_it_and_renews_its_age():
    pool = PagePool(2)
    pages = pool.allocate(2)
    for page in pages:
        pool.keep(page)
        pool.release([page])
    pool.hold([pages[0]])
    assert pool.oldest_idle() == pages[1]
    pool.release([pages[0]])
    assert pool.oldest_idle() == pages[1]


def test_a_page_dropped_while_held_is_free_once_released():
    pool = PagePool(1)
    pages = pool.allocate(1)
    pool.keep(pages[0])
    pool.drop(pages[0])
    assert pool.num_available == 0
    pool.release(pages)
    assert pool.num_free == 1


def test_asking_for_more_than_is_free_says_how_many_there_are():
    pool = PagePool(2)
    with pytest.raises(OutOfPages, match="3 KV pages were requested, but 2 of 2 are free"):
        pool.allocate(3)
    assert pool.num_free == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool._free.pop(),
        lambda pool: pool._free.append(0),
        lambda pool: pool._holders.__setitem__(0, 2),
        lambda pool: pool._is_kept.__setitem__(3, True),
        lambda pool: pool._idle.clear(),
    ],
)
def test_damage_is_noticed(damage):
    pool = PagePool(4)
    pages = pool.allocate(2)
    pool.keep(pages[1])
    pool.release([pages[1]])
    assert problems(pool, [1, 0, 0, 0], {pages[1]}) == []
    damage(pool)
    assert problems(pool, [1, 0, 0, 0], {pages[1]})
