"""Ownership of KV cache pages: every page is free, held, or idle in the prefix cache.

The pool knows page numbers only, no tensors and no tokens. A page may have several holders (sequences that share a
prefix, siblings that wait for their prompt), and the prefix cache may keep it at the same time. Conservation law:
``num_free + num_held + num_idle == num_pages``, always.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from zerogap.errors import OutOfPages


class PagePool:
    """A free list, the number of holders of each page, and the idle pages in order of last use."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        # Taken from the end: low page numbers first, so that a small load touches little memory.
        self._free = list(range(num_pages - 1, -1, -1))
        self._holders = [0] * num_pages
        self._is_kept = [False] * num_pages
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Pages that have no holder and that the prefix cache does not keep."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Pages that only the prefix cache keeps: they can be evicted."""
        return len(self._idle)

    @property
    def num_available(self) -> int:
        """Pages that can be allocated, after eviction if necessary."""
        return len(self._free) + len(self._idle)

    def num_holders(self, page: int) -> int:
        """How many sequences or waiting groups hold the page; the prefix cache is not counted."""
        return self._holders[page]

    def allocate(self, count: int) -> list[int]:
        """Take free pages, one holder each.

        Raises:
            OutOfPages: fewer pages are free; the prefix cache must evict first.
        """
        if count > len(self._free):
            msg = f"{count} KV pages were requested, but {len(self._free)} of {self.num_pages} are free ({len(self._idle)} idle in the prefix cache); evict or retract first"
            raise OutOfPages(msg)
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def hold(self, pages: Sequence[int]) -> None:
        """Add a holder to pages that are held or that the prefix cache keeps."""
        for page in pages:
            if not self._holders[page]:
                del self._idle[page]
            self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Remove a holder of each page. ``pages`` are in sequence order.

        The last of them becomes idle first, so that among idle pages a page is always older than the
        page before it in a sequence: evicting the oldest never cuts a path in the middle.
        """
        for page in reversed(pages):
            self._holders[page] -= 1
            if not self._holders[page]:
                if self._is_kept[page]:
                    self._idle[page] = None
                else:
                    self._free.append(page)

    def keep(self, page: int) -> None:
        """The prefix cache keeps a held page: when released, the page becomes idle, not free."""
        self._is_kept[page] = True

    def drop(self, page: int) -> None:
        """The prefix cache no longer keeps the page."""
        self._is_kept[page] = False
        if not self._holders[page]:
            del self._idle[page]
            self._free.append(page)

    def oldest_idle(self) -> int:
        """The least recently used idle page. There must be one."""
        return next(iter(self._idle))

    def problems(self, holders_P: np.ndarray, is_kept_P: np.ndarray) -> list[str]:
        """Violations of the conservation law, in words.

        Args:
            holders_P: number of holders of each page that the caller knows.
            is_kept_P: whether the prefix cache knows the page.
        """
        times_free_P = np.bincount(np.array(self._free, np.int64), minlength=self.num_pages)
        is_idle_P = np.zeros(self.num_pages, bool)
        is_idle_P[list(self._idle)] = True
        counted_P = np.array(self._holders)
        wrong = {
            "has another number of holders than it counts": counted_P != holders_P,
            "and the prefix cache disagree on whether it is kept": is_kept_P != self._is_kept,
            "is not exactly one of free, idle and held": times_free_P + is_idle_P + (counted_P > 0)
            != 1,
        }
        return [
            f"page {page} {what}" for what, where in wrong.items() for page in np.flatnonzero(where)
        ]
