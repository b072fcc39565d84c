"""Lookup of computed prefixes: a radix tree whose edges are page-size blocks of token ids.

Goes in: the ids of a sequence and the pages that hold their keys and values. Comes out: the longest
known prefix. Full pages are shared by reference. A prefix may end inside a page: the caller copies that
page and goes on writing in the copy (copy-on-write), so nothing is recomputed.

Each policy and adapter has its own tree, and all trees belong to one weight version. ``start_namespace`` drops them:
pages of old weights are no longer found, and pages without a holder are free at once.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from zerogap.engine.page_pool import PagePool
from zerogap.kernels import PAGE_SIZE

Block = tuple[int, ...]
"""Token ids of one page; shorter than a page only at the end of a stopped sequence."""
WeightsName = tuple[str, str]
"""The names of a policy and of its adapter."""
BASE_WEIGHTS: WeightsName = ("", "")
"""An engine's only model, without an adapter."""


@dataclass(eq=False)
class Node:
    """A page in the tree, with its block of ids; the blocks on the path from the root come before it."""

    block: Block
    page: int
    parent: "Node | None"
    children: dict[Block, "Node"] = field(default_factory=dict)
    ordered: list[Block] = field(default_factory=list)
    """Keys of ``children``, sorted: the child that shares most leading ids with a block is its neighbour."""


@dataclass(frozen=True)
class PrefixMatch:
    """The part of a token sequence that is in the cache."""

    node: Node
    """The last full page of the match."""
    pages: list[int]
    """The full pages, in order; the match holds none of them."""
    partial_page: int | None
    """A page whose first ``num_partial`` slots continue the match; copy it, never write it."""
    num_partial: int

    @property
    def num_tokens(self) -> int:
        """Matched tokens."""
        return len(self.pages) * PAGE_SIZE + self.num_partial


class PrefixCache:
    """The trees, and the pool whose pages they keep; the only way to allocate pages."""

    def __init__(self, num_pages: int, *, is_enabled: bool = True) -> None:
        self.pool = PagePool(num_pages)
        self.is_enabled = is_enabled
        self.namespace = 0
        """Grows whenever the weights change; a sequence shares pages only within the present namespace."""
        self._roots: dict[WeightsName, Node] = {}
        self._node_of_page: dict[int, Node] = {}

    def match(
        self, token_ids: np.ndarray, limit: int, *, weights: WeightsName = BASE_WEIGHTS
    ) -> PrefixMatch:
        """The longest known prefix of the first ``limit`` tokens under these weights; ``pool.hold`` keeps its pages."""
        node, pages = self._roots.setdefault(weights, Node((), -1, None)), []
        while len(pages) < limit // PAGE_SIZE:
            child = node.children.get(block_at(token_ids, len(pages), limit))
            if child is None:
                break
            node = child
            pages.append(child.page)
        partial, num_partial = _closest_child(node, block_at(token_ids, len(pages), limit))
        return PrefixMatch(node, pages, partial.page if partial else None, num_partial)

    def publish(
        self, at: Node, blocks: Sequence[Block], pages: Sequence[int]
    ) -> tuple[Node, list[int]]:
        """Add full pages below ``at``, whose path the caller holds.

        Where a block is already known, the caller's page is released and the tree's page is held instead:
        equal ids at one version have equal bits.

        Returns:
            The last node, and the pages that the caller now holds instead of ``pages``.
        """
        held = []
        for block, page in zip(blocks, pages, strict=True):
            child = at.children.get(block)
            if child is None:
                child = self._add(at, block, page)
            elif child.page != page:
                self.pool.hold([child.page])
                self.pool.release([page])
            held.append(child.page)
            at = child
        return at, held

    def publish_tail(self, at: Node, block: Block, page: int) -> None:
        """Add a last, partly filled page below ``at``, unless its ids are already known."""
        if block and _closest_child(at, block)[1] < len(block):
            self._add(at, block, page)

    def allocate(self, count: int) -> list[int] | None:
        """``count`` pages, evicting the least recently used; None, without any change, if there are too few."""
        if count > self.pool.num_available:
            return None
        while self.pool.num_free < count:
            self._evict()
        return self.pool.allocate(count)

    def start_namespace(self) -> None:
        """Forget everything. Sequences keep the pages they hold, which can no longer be shared."""
        for page in self._node_of_page:
            self.pool.drop(page)
        self._node_of_page.clear()
        self._roots.clear()
        self.namespace += 1

    def problems(self, holders_P: np.ndarray) -> list[str]:
        """Contradictions in pool and tree, in words; ``holders_P`` counts the known holders of each page."""
        in_tree = [node for root in self._roots.values() for node in _walk(root)]
        is_kept_P = np.zeros(self.pool.num_pages, bool)
        is_kept_P[[node.page for node in in_tree]] = True
        found = self.pool.problems(holders_P, is_kept_P)
        if {node.page: node for node in in_tree} != self._node_of_page:
            found.append("the tree and its index of pages differ")
        for node in in_tree:
            parent = node.parent
            if node.children and len(node.block) != PAGE_SIZE:
                found.append(f"page {node.page} is partly filled but has pages below it")
            if node.ordered != sorted(node.children):
                found.append(f"page {node.page}: its sorted children differ from its children")
            if parent is None or parent.parent is None:
                continue
            if holders_P[node.page] > holders_P[parent.page]:
                found.append(f"page {node.page} has more holders than page {parent.page} before it")
        return found

    def _add(self, parent: Node, block: Block, page: int) -> Node:
        node = Node(block, page, parent)
        parent.children[block] = node
        insort(parent.ordered, block)
        self._node_of_page[page] = node
        self.pool.keep(page)
        return node

    def _evict(self) -> None:
        node = self._node_of_page.pop(self.pool.oldest_idle())
        assert not node.children, f"page {node.page} would be evicted before the pages below it"
        assert node.parent is not None, "the root has no page to evict"
        del node.parent.children[node.block]
        del node.parent.ordered[bisect_left(node.parent.ordered, node.block)]
        self.pool.drop(node.page)


def block_at(token_ids: np.ndarray, index: int, limit: int) -> Block:
    """Ids on page ``index`` of a sequence, as far as they are among its first ``limit`` tokens."""
    return tuple(token_ids[index * PAGE_SIZE : min((index + 1) * PAGE_SIZE, limit)].tolist())


def _closest_child(node: Node, block: Block) -> tuple[Node | None, int]:
    """The child that shares most leading ids with ``block``, and how many they are."""
    place = bisect_left(node.ordered, block)
    best, best_length = None, 0
    for key in node.ordered[max(0, place - 1) : place + 1]:
        length = _common_length(key, block)
        if length > best_length:
            best, best_length = node.children[key], length
    return best, best_length


def _common_length(first: Block, second: Block) -> int:
    shorter = min(len(first), len(second))
    return next((i for i in range(shorter) if first[i] != second[i]), shorter)


def _walk(root: Node) -> Iterator[Node]:
    pending = list(root.children.values())
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.children.values())
