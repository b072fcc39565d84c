"""The life of requests inside the engine, one step at a time: each completion ends exactly once.

A step plans (scheduler), builds arrays (batch), computes (runner) and commits: it stores each drawn token with the
weight version that drew it, and lets ended sequences leave. An abort happens between two steps.
"""

import time
from collections.abc import Iterable

import numpy as np

from zerogap.engine.batch import Batch, build_batch
from zerogap.engine.plan import StepPlan
from zerogap.engine.requests import Limits, OpenRequest, check_request, open_request
from zerogap.engine.runner import Runner, StepResult
from zerogap.engine.scheduler import Scheduler
from zerogap.engine.sequence import Sequence, new_branch
from zerogap.engine.stats import StatsCounter
from zerogap.errors import InvalidRequest, NumericsError
from zerogap.types import FinishReason, GenerateOutput, GenerateRequest


class EngineLoop:
    """Owns the open requests. The scheduler owns their sequences, the runner the contents of the pages."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        limits: Limits,
        *,
        weight_version: int,
        seed: int,
    ) -> None:
        self.limits = limits
        self.scheduler = scheduler
        self.stats = StatsCounter()
        self.weight_version = weight_version
        """Stored with every token drawn from now on."""
        self.ready: list[GenerateOutput] = []
        """Ended completions of requests without an owner; ``EngineCore.take_outputs`` empties the list."""
        self.open_requests: dict[str, OpenRequest] = {}
        """By rid: the requests with a completion that has not ended."""
        self._runner = runner
        self._seed = seed
        self._num_arrived = 0
        self._num_requests = 0

    @property
    def is_idle(self) -> bool:
        """Whether no sequence runs or waits."""
        return not (self.scheduler.running or self.scheduler.waiting)

    def check(self, requests: Iterable[GenerateRequest]) -> None:
        """Refuse requests that cannot be served, before any of them is opened.

        Raises:
            InvalidRequest, RequestTooLong: see ``requests``.
        """
        seen = set(self.open_requests)
        for request in requests:
            check_request(request, self.limits)
            if request.rid in seen:
                msg = f"request {request.rid} is still open; give each request its own rid, or leave rid out"
                raise InvalidRequest(msg)
            seen.add(request.rid)

    def open(self, request: GenerateRequest, *, is_owned: bool) -> OpenRequest:
        """Queue a checked request. If ``is_owned``, the caller reads its outputs from the result."""
        # Not the arrival number, which scores use too: scoring must not change later draws.
        words = np.random.SeedSequence((self._seed, self._num_requests)).generate_state(
            1, np.uint64
        )
        self._num_requests += 1
        opened = open_request(
            request,
            self.limits,
            arrival=self.next_arrival(),
            seed=int(words[0] >> np.uint64(1)),
            is_owned=is_owned,
        )
        self.open_requests[request.rid] = opened
        for sequence in opened.sequences:
            self.scheduler.add(sequence)
        return opened

    def next_arrival(self) -> int:
        """The number of a new arrival; lower is older."""
        self._num_arrived += 1
        return self._num_arrived - 1

    def abort(self, opened: OpenRequest, message: str) -> None:
        """End the open completions of a request, with the tokens drawn so far."""
        for sequence in opened.sequences:
            if not sequence.is_finished:
                self._finish(sequence, FinishReason("abort", message=message))

    def abort_all(self, message: str) -> None:
        """End every request."""
        for opened in list(self.open_requests.values()):
            self.abort(opened, message)

    def advance(self) -> None:
        """One step, if there is anything to do.

        Raises:
            NumericsError: a log-prob was not finite. All requests are aborted and the cache is emptied, as after any
                other exception of the runner, interrupts included.
        """
        if self.is_idle:
            return
        times_s = [time.perf_counter()]
        plan = self.scheduler.schedule()
        assert plan.rows, (
            f"nothing could be scheduled, and the engine would hang: {len(self.scheduler.running)} running, {len(self.scheduler.waiting)} waiting"
        )
        batch = build_batch(plan)
        times_s.append(time.perf_counter())
        result = self._compute(batch)
        times_s.append(time.perf_counter())
        self._commit(plan, batch, result)
        times_s.append(time.perf_counter())
        self.stats.count_step(
            num_sampled=len(result.token_R),
            num_head_rows=batch.draws.num_distinct,
            lap_s=np.diff(times_s).tolist(),
        )

    def problems(self) -> list[str]:
        """Contradictions in pages, siblings and requests, in words."""
        found = self.scheduler.problems()
        alive = {id(sequence) for sequence in [*self.scheduler.waiting, *self.scheduler.running]}
        for opened in self.open_requests.values():
            for sequence, output in zip(opened.sequences, opened.outputs, strict=True):
                if (output is None) != (id(sequence) in alive):
                    found.append(f"request {sequence.rid}/{sequence.index} is lost")
        return found

    def _compute(self, batch: Batch) -> StepResult:
        try:
            return self._runner.run(batch)
        except NumericsError as error:
            who = sorted({sequence.rid for sequence in batch.draws.sequences})[:5]
            msg = f"weight version {self.weight_version}, a step that drew for {who}: {error}. All requests were aborted; check the last update and that all weights were loaded"
            self._give_up(msg)
            raise NumericsError(msg) from error
        except BaseException as error:
            # The plan counts pages as copied and prompts as forked, but how far the step came is unknown.
            self._give_up(f"a step did not finish: {error!r}")
            raise

    def _commit(self, plan: StepPlan, batch: Batch, result: StepResult) -> None:
        """Store the computed, scored and drawn values, and end the sequences that are done."""
        for scheduled in plan.rows:
            self.stats.count_rows(scheduled)
            self.scheduler.advance(scheduled)
        first = 0
        for task, rows in batch.scores.tasks:
            task.record(rows, result.score_log_prob_Q[first : first + len(rows)])
            first += len(rows)
        self._record_draws(batch.draws.sequences, result)
        for sequence in [scheduled.sequence for scheduled in plan.rows]:
            if not sequence.draws and not sequence.num_missing:
                self._finish(sequence, FinishReason("length"))

    def _record_draws(self, sequences: list[Sequence], result: StepResult) -> None:
        tokens, log_probs = result.token_R.tolist(), result.log_prob_R.tolist()
        kept_log_mass = result.kept_log_mass_R.tolist()
        # Siblings of a branch that draw the same token in the same step stay in one branch; the others part here.
        branches: dict[tuple[int, int], int] = {}
        for row, sequence in enumerate(sequences):
            if sequence.branch:
                drawn = (sequence.branch, tokens[row])
                if drawn not in branches:
                    branches[drawn] = new_branch()
                sequence.branch = branches[drawn]
            if not sequence.num_output:
                self.scheduler.keep_prompt(sequence, result.hidden_RD[row])
            sequence.append_token(
                tokens[row], log_probs[row], kept_log_mass[row], self.weight_version
            )
            reason = sequence.stop.check(sequence.output_ids)
            if reason is not None:
                self._finish(sequence, reason)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Take the sequence off the scheduler, and make its one output."""
        self.scheduler.finish(sequence, is_aborted=reason.kind == "abort")
        if sequence.score is not None:
            return
        self.stats.count_end(reason)
        output = sequence.output(reason)
        opened = self.open_requests[sequence.rid]
        opened.outputs[sequence.index] = output
        opened.num_open -= 1
        if not opened.is_owned:
            self.ready.append(output)
        if not opened.num_open:
            del self.open_requests[sequence.rid]

    def _give_up(self, message: str) -> None:
        """End everything and forget all KV: pages with NaN would spoil later requests."""
        self.abort_all(message)
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            self.scheduler.finish(sequence)
        self.scheduler.start_namespace()
        self._runner.clear()
