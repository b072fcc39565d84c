"""llama.cpp's side: the batch functions of llama-cpp-python on the same weights in fp32. Runs in a worker process.

It uses the fastest setting for groups. Each prompt is decoded once, and its keys and values are copied to the siblings.
Each sequence has its own KV stream (``kv_unified`` off; with a single stream, attention reads the keys of all sequences).
Keys and values have 16 bits, llama.cpp's default.
"""

import ctypes
from collections import deque
from collections.abc import Sequence

import llama_cpp
import numpy as np

from zerogap.errors import BenchmarkError
from zerogap_bench.machine import OthersLoad, PeakMemory
from zerogap_bench.prepare import Prepared
from zerogap_bench.records import PeerMeasured
from zerogap_bench.shapes import RunShape

_ROWS = 512
"""Rows of a batch: llama.cpp's default for a physical batch."""
_STREAM_MULTIPLE = 256
"""llama.cpp rounds the length of a stream up to a multiple of this."""


class LlamaCppRollout:
    """Decodes one token per sequence and batch, drawn from the logits with its log-prob."""

    def __init__(self, *, prepared: Prepared, shapes: Sequence[RunShape]) -> None:
        assert prepared.gguf is not None, "the weights were not exported for llama.cpp"
        llama_cpp.llama_log_set(_keep_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._prompt_ids = prepared.prompt_ids
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(prepared.gguf.encode(), options)
        if not self._model:
            raise _failure(f"llama.cpp cannot load {prepared.gguf}; leave it out of --peers")
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._num_logits = llama_cpp.llama_vocab_n_tokens(vocab)
        self._vocab_limit = prepared.shape.vocab_size
        self._context = self._open(prepared, shapes)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(_ROWS, 0, 1)
        self.generate(RunShape(1, 2, 2), seed=0)

    def run(self, *, shape: RunShape, seed: int) -> PeerMeasured:
        """One measured run with log-probs."""
        with OthersLoad() as others:
            ids_BT, log_probs_BT = self.generate(shape, seed=seed)
        expected = (shape.num_sequences, shape.max_new_tokens)
        assert ids_BT.shape == log_probs_BT.shape == expected, f"{ids_BT.shape} is not {expected}"
        return PeerMeasured(
            seconds=others.wall_s, others_load=others.share, peak_rss_gb=PeakMemory().gb
        )

    def generate(self, shape: RunShape, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, log-probs), each [sequences, new tokens], starting with an empty KV cache."""
        llama_cpp.llama_memory_clear(self._memory, False)
        random = np.random.default_rng(seed)
        ids = np.empty((shape.num_sequences, shape.max_new_tokens), np.int64)
        log_probs = np.empty(ids.shape, np.float32)
        lengths = np.empty(shape.num_sequences, np.int64)
        for group, prompt in enumerate(self._prompt_ids[: shape.num_prompts]):
            first = group * shape.group_size
            logits = self._prefill(prompt, sequence=first)
            lengths[first : first + shape.group_size] = len(prompt)
            for sequence in range(first, first + shape.group_size):
                if sequence != first:
                    llama_cpp.llama_memory_seq_cp(self._memory, first, sequence, -1, -1)
                ids[sequence, 0], log_probs[sequence, 0] = _draw(logits, random.random())
        for step in range(1, shape.max_new_tokens):
            for begin in range(0, shape.num_sequences, _ROWS):
                rows = range(begin, min(begin + _ROWS, shape.num_sequences))
                self._decode(
                    [(int(ids[s, step - 1]), int(lengths[s]) + step - 1, s, True) for s in rows]
                )
                for row, sequence in enumerate(rows):
                    drawn = _draw(self._logits(row), random.random())
                    ids[sequence, step], log_probs[sequence, step] = drawn
        return ids, log_probs

    def _open(self, prepared: Prepared, shapes: Sequence[RunShape]) -> object:
        longest = max(len(ids) for ids in prepared.prompt_ids)
        length = longest + max(shape.max_new_tokens for shape in shapes)
        stream = -(-length // _STREAM_MULTIPLE) * _STREAM_MULTIPLE
        options = llama_cpp.llama_context_default_params()
        options.n_seq_max = max(2, *(shape.num_sequences for shape in shapes))
        options.n_ctx = stream * options.n_seq_max
        options.n_batch = options.n_ubatch = _ROWS
        options.n_threads = options.n_threads_batch = prepared.threads
        options.kv_unified = False
        context = llama_cpp.llama_init_from_model(self._model, options)
        if not context:
            raise _failure(
                f"llama.cpp cannot create a context of {options.n_seq_max} sequences of {stream} tokens; use smaller --shapes"
            )
        return context

    def _prefill(self, prompt: Sequence[int], *, sequence: int) -> np.ndarray:
        for begin in range(0, len(prompt), _ROWS):
            chunk = prompt[begin : begin + _ROWS]
            last = len(prompt) - 1
            self._decode([(t, p, sequence, p == last) for p, t in enumerate(chunk, start=begin)])
        return self._logits(-1)

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        """Decode rows of (id, position, sequence, whether its logits are needed)."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (token, position, sequence, is_drawn) in enumerate(rows):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
            batch.logits[row] = is_drawn
        code = llama_cpp.llama_decode(self._context, batch)
        if code:
            raise _failure(f"llama.cpp could not decode a batch of {len(rows)} rows (code {code})")

    def _logits(self, row: int) -> np.ndarray:
        """Logits of a row of the last batch; -1: the last row with logits. A view that the next batch overwrites."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, (self._num_logits,))[: self._vocab_limit]


def _draw(logits: np.ndarray, uniform: float) -> tuple[int, float]:
    """(id, log-prob) by the inverse of the cumulative distribution, which is faster than llama.cpp's samplers."""
    peak = logits.max()
    mass = np.cumsum(np.exp(logits - peak))
    token = min(int(np.searchsorted(mass, uniform * mass[-1])), len(mass) - 1)
    return token, float(logits[token] - peak - np.log(mass[-1]))


_last_words: deque[str] = deque(maxlen=8)
"""Last lines of llama.cpp's log, for error messages: only the log tells the cause."""


@llama_cpp.llama_log_callback
def _keep_log(_level: int, text: bytes, _data: ctypes.c_void_p) -> None:
    _last_words.append(text.decode(errors="replace").strip())


def _failure(what: str) -> BenchmarkError:
    return BenchmarkError(f"{what}; end of its log: {' | '.join(_last_words)}")
