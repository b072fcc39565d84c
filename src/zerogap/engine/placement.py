"""Where sequences get their pages from, and what happens to the pages when sequences leave.

A sequence starts from the prefix cache, or forks the prompt that a sibling computed. It grows page by page. While it
computes its prompt, it publishes full pages for others. When it stops, its pages stay in the cache until the room is
needed. The scheduler decides which sequences start and stop.
"""

import numpy as np
from torch import Tensor

from zerogap.engine.page_pool import PagePool
from zerogap.engine.plan import StepPlan
from zerogap.engine.prefix_cache import Block, Node, PrefixCache, block_at
from zerogap.engine.sequence import Sequence, new_branch, num_pages_for
from zerogap.engine.siblings import SiblingIndex, Siblings
from zerogap.kernels import PAGE_SIZE

PagesInFlight = set[tuple[Node | None, Block]]
"""Pages that are being computed, each as its parent node and its ids."""


class Placement:
    """Owns the pages: the pool, the prefix cache, and the prompts that siblings wait for."""

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.siblings = SiblingIndex()

    @property
    def pool(self) -> PagePool:
        """The pool of the cache."""
        return self.cache.pool

    def start(
        self, sequence: Sequence, plan: StepPlan, in_flight: PagesInFlight, *, reserve: int
    ) -> bool | None:
        """Give a sequence pages for all its missing rows, from the prefix cache as far as possible.

        Args:
            sequence: a waiting one; on success its computed rows are set.
            plan: gets the copy of a page that is shared in part.
            in_flight: pages that other sequences are computing.
            reserve: pages that must be left over.

        Returns:
            False if there are too few pages, None if another sequence is computing the next page of the prefix.
        """
        match = self.cache.match(sequence.token_ids, sequence.cache_limit, weights=sequence.weights)
        next_block = block_at(sequence.token_ids, len(match.pages), sequence.cache_limit)
        if (match.node, next_block) in in_flight:
            return None
        # Hold first: the allocation may evict, and must not evict the pages just found.
        self.pool.hold(match.pages)
        fresh = self._allocate(num_pages_for(sequence.goal) - len(match.pages), reserve)
        if fresh is None:
            self.pool.release(match.pages)
            return False
        if match.partial_page is not None:
            # The allocation may have evicted the source, but nothing writes to it before the copy.
            plan.page_copies.append((match.partial_page, fresh[0]))
        sequence.append_pages([*match.pages, *fresh])
        sequence.node, sequence.num_published = match.node, len(match.pages)
        sequence.num_computed = match.num_tokens
        return True

    def fork(self, sequence: Sequence, siblings: Siblings, plan: StepPlan, *, reserve: int) -> bool:
        """Take over the prompt that a sibling computed; False if there are too few pages."""
        num_full = sequence.num_prompt // PAGE_SIZE
        copies = self._allocate(len(siblings.pages) - num_full, reserve)
        if copies is None:
            return False
        plan.page_copies += zip(siblings.pages[num_full:], copies, strict=True)
        self.pool.hold(siblings.pages[:num_full])
        sequence.append_pages([*siblings.pages[:num_full], *copies])
        sequence.node, sequence.num_published = siblings.node, siblings.num_published
        sequence.prompt_hidden_D, sequence.branch = siblings.hidden_D, siblings.branch
        sequence.num_computed = sequence.num_prompt
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Make room for the next row, with a new page if necessary; False if no page can be had."""
        if sequence.num_computed < sequence.num_pages * PAGE_SIZE:
            return True
        pages = self.cache.allocate(1)
        if pages is not None:
            sequence.append_pages(pages)
        return pages is not None

    def publish(self, sequence: Sequence) -> None:
        """Let other sequences find the full computed pages."""
        if not self._is_shareable(sequence):
            return
        start, end = sequence.num_published, sequence.num_computed // PAGE_SIZE
        blocks = [block_at(sequence.token_ids, i, sequence.num_computed) for i in range(start, end)]
        sequence.node, pages = self.cache.publish(
            _node(sequence), blocks, sequence.pages[start:end].tolist()
        )
        sequence.pages[start:end] = pages
        sequence.num_published = end

    def stop(self, sequence: Sequence) -> None:
        """Take the sequence off its pages; their contents stay cached while there is room."""
        if self._is_shareable(sequence):
            self.publish(sequence)
            tail = block_at(sequence.token_ids, sequence.num_published, sequence.num_computed)
            if tail:
                page = int(sequence.pages[sequence.num_published])
                self.cache.publish_tail(_node(sequence), tail, page)
        self.pool.release(sequence.held_pages())
        sequence.forget_kv()

    def keep_prompt(self, sequence: Sequence, hidden_D: Tensor) -> None:
        """The sequence has computed its prompt: keep the prompt for waiting siblings, if any."""
        siblings = self.siblings.waiting_for(sequence)
        if siblings is not None:
            siblings.hidden_D, siblings.branch = hidden_D.clone(), new_branch()
            siblings.pages = sequence.held_pages()[: num_pages_for(sequence.num_prompt)]
            siblings.node, siblings.num_published = sequence.node, sequence.num_published
            self.pool.hold(siblings.pages)

    def drop_kept_prompts(self, *, only_an_orphan: bool = False) -> bool:
        """Release prompts that are kept for siblings: they will compute them again.

        Args:
            only_an_orphan: release at most one, whose pages no running sequence shares.

        Returns:
            Whether any was released.
        """
        kept = [s for s in self.siblings if (s.is_orphaned if only_an_orphan else s.is_ready)]
        kept = kept[:1] if only_an_orphan else kept
        for siblings in kept:
            self.pool.release(siblings.take_pages())
        return bool(kept)

    def is_computing_a_page(self, sequence: Sequence) -> bool:
        """Whether the running sequence is computing a full page of its prefill that others may wait for."""
        next_end = (sequence.num_published + 1) * PAGE_SIZE
        return self._is_shareable(sequence) and next_end <= sequence.prefill_end

    def problems(self, running: list[Sequence]) -> list[str]:
        """Contradictions between sequences, pages and tree, in words."""
        holders_P = np.zeros(self.pool.num_pages, np.int64)
        kept = [siblings.pages for siblings in self.siblings]
        for pages in [*(sequence.held_pages() for sequence in running), *kept]:
            np.add.at(holders_P, pages, 1)
        return self.cache.problems(holders_P)

    def _allocate(self, count: int, reserve: int) -> list[int] | None:
        is_enough = self.pool.num_available >= count + reserve
        return self.cache.allocate(count) if is_enough else None

    def _is_shareable(self, sequence: Sequence) -> bool:
        return self.cache.is_enabled and sequence.namespace == self.cache.namespace


def next_page(sequence: Sequence) -> tuple[Node | None, Block]:
    """The page that a running sequence is computing, as an entry of ``PagesInFlight``."""
    return sequence.node, block_at(sequence.token_ids, sequence.num_published, sequence.num_tokens)


def _node(sequence: Sequence) -> Node:
    assert sequence.node is not None, f"{sequence.rid} runs without a node in the prefix cache"
    return sequence.node
