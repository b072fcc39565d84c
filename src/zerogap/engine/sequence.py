"""The engine's state of one token stream: its ids, its pages, and the log-probs of its tokens.

All the engine does to a sequence is to compute its missing rows. A new prompt, a chunk of it, the part that the prefix
cache lacks, a recomputation after a retraction and a decode step differ only in how many rows are missing.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from zerogap.engine.logit_edits import LogitEdits
from zerogap.engine.prefix_cache import BASE_WEIGHTS, Node, WeightsName
from zerogap.engine.stopping import StopConditions
from zerogap.kernels import PAGE_SIZE
from zerogap.types import (
    CompletionUpdate,
    FinishReason,
    GenerateOutput,
    SamplingParams,
)


@dataclass(frozen=True)
class ScoreTask:
    """Marks a sequence whose tokens are given and only scored."""

    start: int
    """First token whose log-prob is wanted, at least 1."""
    temperature: float
    log_probs: np.ndarray
    """float32 [len - start], filled as rows are computed."""

    def rows_of_interest(self, start_row: int, end_row: int) -> range:
        """The rows in ``[start_row, end_row)`` that predict a token to be scored."""
        return range(max(start_row, self.start - 1), max(end_row, self.start - 1))

    def record(self, rows: range, log_probs: np.ndarray) -> None:
        """Store the log-probs that the rows gave the tokens after them."""
        first = rows.start + 1 - self.start
        self.log_probs[first : first + len(rows)] = log_probs


@dataclass(eq=False, kw_only=True)
class Sequence:
    """One prompt and the tokens drawn after it. Owned by the scheduler; only the engine mutates it."""

    rid: str
    index: int
    """Sibling within the request."""
    order: tuple[int, int]
    """(arrival of the request, index): lower is older. Siblings are neighbours in this order."""
    prompt_ids: np.ndarray
    params: SamplingParams
    seed: int
    stop: StopConditions
    weights: WeightsName = BASE_WEIGHTS
    """The weights that computed its keys and values: pages are shared under the same name only."""
    edits: LogitEdits | None = None
    score: ScoreTask | None = None

    num_computed: int = 0
    """Number of leading tokens whose keys and values are on this sequence's pages."""
    num_pages: int = 0
    is_running: bool = False
    """Whether it holds pages; otherwise it waits."""
    is_finished: bool = False
    branch: int = 0
    """Equal for sequences that forked one prompt and have drawn the same tokens in the same steps since: their rows
    have the same bits, and one of them computes for all. 0 for a sequence that shares no rows."""
    prompt_hidden_D: Tensor | None = None
    """The last hidden state of the prompt, from the sibling that computed it; the first draw uses it."""
    namespace: int = -1
    """The cache namespace of all its pages; they are published in no other one."""
    node: Node | None = None
    """Deepest published page."""
    num_published: int = 0
    """Number of leading pages that are in the prefix cache."""
    prefill_end: int = 0
    """Rows before it belong to the prefill of the last start; later rows are decode rows."""
    max_computed: int = 0
    """Largest ``num_computed`` so far: rows before it are computed again."""
    num_cached_tokens: int = 0
    """Prompt tokens that were already computed when the sequence first started."""
    num_retractions: int = 0

    prompt_key: tuple[WeightsName, bytes] = field(init=False)
    """Weights and prompt: equal for siblings."""
    num_tokens: int = field(init=False)
    token_ids: np.ndarray = field(init=False)
    """int32 [prompt + max_new_tokens], the first num_tokens are known."""
    log_probs: np.ndarray = field(init=False)
    kept_log_mass: np.ndarray = field(init=False)
    versions: np.ndarray = field(init=False)
    """int32 [max_new_tokens]: the weight version that drew each token."""
    pages: np.ndarray = field(init=False)
    """int32, the first num_pages are held, in order of position."""

    def __post_init__(self) -> None:
        self.prompt_key = self.weights, self.prompt_ids.tobytes()
        self.num_tokens = len(self.prompt_ids)
        capacity = self.num_tokens + self.params.max_new_tokens
        self.token_ids = np.zeros(capacity, np.int32)
        self.token_ids[: self.num_tokens] = self.prompt_ids
        self.log_probs = np.zeros(self.params.max_new_tokens, np.float32)
        self.kept_log_mass = np.zeros(self.params.max_new_tokens, np.float32)
        self.versions = np.zeros(self.params.max_new_tokens, np.int32)
        self.pages = np.zeros(num_pages_for(capacity), np.int32)

    @property
    def num_prompt(self) -> int:
        """Tokens that were given."""
        return len(self.prompt_ids)

    @property
    def num_output(self) -> int:
        """Tokens that were drawn."""
        return self.num_tokens - len(self.prompt_ids)

    @property
    def output_ids(self) -> np.ndarray:
        """int32 view of the drawn tokens."""
        return self.token_ids[len(self.prompt_ids) : self.num_tokens]

    @property
    def goal(self) -> int:
        """Rows to compute before the next draw or the last score; the last scored token itself needs no row."""
        return self.num_tokens - 1 if self.score else self.num_tokens

    @property
    def num_missing(self) -> int:
        """Rows still to compute."""
        return self.goal - self.num_computed

    @property
    def cache_limit(self) -> int:
        """Number of leading tokens that may come from the cache: their hidden states are not needed."""
        return self.score.start - 1 if self.score else self.num_tokens - 1

    @property
    def awaits_first_token(self) -> bool:
        """Whether it draws and has drawn nothing yet, so that it can start from a sibling's prompt."""
        return self.draws and not self.num_output

    @property
    def draws(self) -> bool:
        """Whether a token is drawn once no row is missing."""
        return self.score is None and self.params.max_new_tokens > 0

    def append_pages(self, pages: list[int]) -> None:
        """Hold further pages, after the present ones."""
        self.pages[self.num_pages : self.num_pages + len(pages)] = pages
        self.num_pages += len(pages)

    def held_pages(self) -> list[int]:
        """All pages, in order."""
        return self.pages[: self.num_pages].tolist()

    def append_token(self, token: int, log_prob: float, kept_log_mass: float, version: int) -> None:
        """Store a drawn token."""
        at = self.num_output
        self.token_ids[self.num_tokens] = token
        self.log_probs[at] = log_prob
        self.kept_log_mass[at] = kept_log_mass
        self.versions[at] = version
        self.num_tokens += 1
        if self.edits is not None:
            self.edits.observe(token)

    def forget_kv(self) -> None:
        """Back to waiting: no computed rows, no pages. Drawn tokens and their log-probs stay."""
        self.num_computed = self.num_pages = self.num_published = 0
        self.node = self.prompt_hidden_D = None
        self.branch = 0
        self.is_running = False

    def update(self) -> CompletionUpdate:
        """The present state of a completion that has not ended."""
        return CompletionUpdate(
            rid=self.rid,
            index=self.index,
            output_ids=self.output_ids.copy(),
            output_log_probs=self.log_probs[: self.num_output].copy(),
            text=self.stop.visible_text(),
            output=None,
        )

    def output(self, reason: FinishReason) -> GenerateOutput:
        """The completion, which has ended for this reason."""
        num_output = self.num_output
        return GenerateOutput(
            rid=self.rid,
            index=self.index,
            prompt_ids=self.prompt_ids,
            output_ids=self.output_ids.copy(),
            output_log_probs=self.log_probs[:num_output].copy(),
            kept_log_mass=self.kept_log_mass[:num_output].copy(),
            finish_reason=reason,
            weight_version=self.versions[:num_output].copy(),
            seed=self.seed,
            num_cached_tokens=self.num_cached_tokens,
            num_retractions=self.num_retractions,
            text=self.stop.final_text(self.output_ids, reason),
        )


_branches = itertools.count(1)


def new_branch() -> int:
    """A branch number that was never used before."""
    return next(_branches)


def num_pages_for(num_tokens: int) -> int:
    """Pages needed for so many tokens."""
    return -(-num_tokens // PAGE_SIZE)
