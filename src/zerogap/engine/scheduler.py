"""Which rows the next forward pass computes.

There is one path: every sequence misses some rows, and a step computes missing rows within a token budget. First come
sequences that miss one row (they decode), then chunks of sequences that miss more; then waiting sequences start, oldest
first. When pages run out, idle cached pages are evicted; then the youngest running sequence is retracted: it keeps its
drawn tokens and their log-probs, gives its pages back, and computes its rows again later.

A waiting sequence is held back while another computes what it needs: its whole prompt (siblings fork it, see
``siblings``), or the next page of a shared beginning.
"""

from bisect import insort

from torch import Tensor

from zerogap.engine.forecast import Forecast
from zerogap.engine.placement import PagesInFlight, Placement, next_page
from zerogap.engine.plan import ScheduledRows, StepPlan
from zerogap.engine.prefix_cache import PrefixCache
from zerogap.engine.sequence import Sequence


class Scheduler:
    """Owns waiting and running sequences; ``Placement`` owns their pages."""

    def __init__(self, cache: PrefixCache, *, max_running: int, max_scheduled_tokens: int) -> None:
        self.waiting: list[Sequence] = []
        """By age, oldest first."""
        self.running: list[Sequence] = []
        """By age, oldest first."""
        self.num_retractions = 0
        self.num_cached_tokens = 0
        """Rows that were already computed when a sequence started."""
        self._cache = cache
        self._placement = Placement(cache)
        self._siblings = self._placement.siblings
        self._max_running = max_running
        self._max_scheduled_tokens = max_scheduled_tokens
        self._forecast = Forecast()

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait: a new one, or one that gave its pages back."""
        insort(self.waiting, sequence, key=_age)
        if sequence.awaits_first_token:
            self._siblings.join(sequence)

    def schedule(self) -> StepPlan:
        """Plan a step and allocate pages for its rows. Call ``advance`` before any other change."""
        plan = StepPlan(self._max_scheduled_tokens)
        for sequence in [s for s in self.running if s.num_missing == 1]:
            # A later sequence may have been retracted to make room for an earlier one.
            if sequence.is_running and self._make_room_for_row(sequence):
                plan.add(sequence, 1)
        for sequence in self.running:
            if sequence.num_missing > 1 and plan.budget:
                plan.add(sequence, min(sequence.num_missing, plan.budget))
        self._start_waiting(plan)
        return plan

    def advance(self, scheduled: ScheduledRows) -> None:
        """Count the rows, which are now computed, and publish the pages of the prompt."""
        sequence = scheduled.sequence
        sequence.num_computed += scheduled.num_rows
        sequence.max_computed = max(sequence.max_computed, sequence.num_computed)
        sequence.prompt_hidden_D = None
        if sequence.num_computed <= sequence.prefill_end:
            self._placement.publish(sequence)

    def keep_prompt(self, sequence: Sequence, hidden_D: Tensor) -> None:
        """Keep the prompt of a sequence that draws its first token, with this hidden state, for siblings to fork."""
        self._placement.keep_prompt(sequence, hidden_D)

    def finish(self, sequence: Sequence, *, is_aborted: bool = False) -> None:
        """The sequence ended, running or waiting: it gives everything back."""
        if sequence.is_running:
            if not is_aborted:
                self._forecast.observe_end(sequence)
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)
            if sequence.awaits_first_token:
                self._placement.pool.release(self._siblings.leave(sequence))
        sequence.is_finished = True

    def retract(self, sequence: Sequence) -> None:
        """Take a running sequence off its pages; it waits and computes its rows again."""
        self._stop(sequence)
        sequence.num_retractions += 1
        self.num_retractions += 1
        self.add(sequence)

    def start_namespace(self) -> None:
        """The weights have changed: share nothing computed before with anything computed from now on.

        Sequences that have drawn tokens go on with their own pages and publish none of them. The others start again:
        they have no tokens to keep, and their prompt would be half old and half new.
        """
        for sequence in [s for s in self.running if not s.num_output]:
            self._stop(sequence)
            self.add(sequence)
        self._placement.drop_kept_prompts()
        self._cache.start_namespace()

    def problems(self) -> list[str]:
        """Contradictions between sequences, pages and tree, in words; none on a healthy engine."""
        found = self._placement.problems(self.running)
        num_waiting = sum(sequence.awaits_first_token for sequence in self.waiting)
        if sum(siblings.num_waiting for siblings in self._siblings) != num_waiting:
            found.append("the siblings count other waiting sequences than there are")
        if any(sequence.num_pages for sequence in self.waiting):
            found.append("a waiting sequence holds pages")
        return found

    def _make_room_for_row(self, sequence: Sequence) -> bool:
        """Get a page for the next row, retracting younger sequences if necessary; False if it was retracted itself."""
        while not self._placement.grow(sequence):
            if not self._placement.drop_kept_prompts(only_an_orphan=True):
                self.retract(self.running[-1])
                if not sequence.is_running:
                    return False
        return True

    def _start_waiting(self, plan: StepPlan) -> None:
        if not self.waiting or len(self.running) >= self._max_running:
            return
        computing = filter(self._placement.is_computing_a_page, self.running)
        in_flight = {next_page(sequence) for sequence in computing}
        for sequence in list(self.waiting):
            if len(self.running) >= self._max_running:
                return
            has_started = self._try_start(sequence, plan, in_flight)
            if has_started is False and not self.running and self._placement.drop_kept_prompts():
                # No sequence runs, so kept prompts held the pages; without them any sequence fits alone.
                has_started = self._try_start(sequence, plan, in_flight)
            if has_started is False:
                # A younger one may need fewer pages, but would keep this one waiting forever.
                return

    def _try_start(
        self, sequence: Sequence, plan: StepPlan, in_flight: PagesInFlight
    ) -> bool | None:
        """True if the sequence now runs, False if pages are lacking, None if it waits for other rows or for budget."""
        siblings = self._siblings.of(sequence) if sequence.awaits_first_token else None
        # Alone, a sequence always fits, so it needs no reserve.
        others = [*self.running, sequence] if self.running else []
        reserve = self._forecast.peak_growth(others)
        if siblings is not None and siblings.is_ready:
            if not self._placement.fork(sequence, siblings, plan, reserve=reserve):
                return False
            self._run(sequence, plan)
            self._placement.pool.release(self._siblings.leave(sequence))
            return True
        if (siblings is not None and siblings.is_computing) or not plan.budget:
            return None
        has_started = self._placement.start(sequence, plan, in_flight, reserve=reserve)
        if has_started:
            if siblings is not None:
                self._siblings.lead(sequence)
            self._run(sequence, plan)
            if self._placement.is_computing_a_page(sequence):
                in_flight.add(next_page(sequence))
        return has_started

    def _run(self, sequence: Sequence, plan: StepPlan) -> None:
        """Let a sequence that has its pages run, from this step on."""
        if not sequence.num_output and not sequence.num_retractions:
            sequence.num_cached_tokens = sequence.num_computed
        self.num_cached_tokens += sequence.num_computed
        sequence.prefill_end = sequence.goal
        sequence.namespace = self._cache.namespace
        sequence.is_running = True
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_age)
        plan.add(sequence, min(sequence.num_missing, plan.budget))

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._siblings.leader_stopped(sequence)
        self._placement.stop(sequence)


def _age(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
