"""How fast are rollouts and single sequences, compared with the machine's limit and with the alternatives?

Every answer has the requested length. Log-probs are on, the temperature is 1, and numbers are fp32. The prefix cache is
empty before each run, as after a weight update. Sides take turns; shares and ratios compare consecutive runs.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from zerogap.errors import BenchmarkError
from zerogap_bench.flops import ModelShape
from zerogap_bench.peers import Choice, VllmSide, start_rollout
from zerogap_bench.profiling import ProfileTable
from zerogap_bench.question import Setting
from zerogap_bench.records import Measured, PeerMeasured
from zerogap_bench.shapes import RunShape
from zerogap_bench.summary import rollout_work, summarise, summarise_decoding, summarise_peer
from zerogap_bench.tables import Table, load_warning, profile_table, show_share, show_spread
from zerogap_bench.workers import Side, Worker

PEERS = ("transformers", "vllm", "llama.cpp")
_VARIANTS: dict[str, dict[str, dict[str, bool]]] = {
    "transformers": {
        "transformers, plain": {"with_log_probs": False},
        "transformers, with log-probs": {"with_log_probs": True},
    },
    "vllm": {"vLLM, with log-probs": {"with_log_probs": True}},
    "llama.cpp": {"llama.cpp, with log-probs": {}},
}
_FEW_SEQUENCES = 64
"""With at most this many sequences, every peer finishes a run in about a minute on two cores."""


@dataclass
class _Runs:
    """The runs of one shape."""

    ours: list[Measured] = field(default_factory=list)
    peers: dict[str, dict[str, list[PeerMeasured]]] = field(default_factory=dict)
    """By peer and variant."""
    profile: ProfileTable | None = None


class Generation:
    """Rollouts of several shapes. A single sequence is also compared with memory bandwidth."""

    name = "rollout"

    def __init__(
        self,
        shapes: Sequence[RunShape],
        *,
        repeats: int,
        choice: Choice,
        all_peers: bool = False,
        profile: bool = False,
    ) -> None:
        # Small shapes first, so that the peak memory of a side belongs to the current shape.
        self._shapes = sorted(shapes, key=lambda shape: shape.num_output_tokens)
        self._repeats, self._choice, self._profile = repeats, choice, profile
        self._all_peers = all_peers
        self._model: ModelShape | None = None
        self._runs = {shape: _Runs() for shape in self._shapes}
        self._versions: dict[str, str] = {}
        """Versions of peers in other environments."""
        self.failures: list[str] = []

    @property
    def num_prompts(self) -> int:
        """The largest number of any shape."""
        return max(shape.num_prompts for shape in self._shapes)

    def measure(self, setting: Setting) -> None:
        """Start all sides, then measure each shape repeatedly."""
        self._model = setting.prepared.shape
        with ExitStack() as stack:
            setting.say("rollout: starting zerogap")
            ours = stack.enter_context(
                Worker(
                    "zerogap", "zerogap_bench.sides.zerogap_side:Rollout",
                    threads=setting.prepared.threads, prepared=setting.prepared, shapes=self._shapes,
                )
            )  # fmt: skip
            peers = self._start_peers(setting, stack)
            for shape in self._shapes:
                self._measure_shape(setting, shape, ours, peers)

    def tables(self) -> list[Table]:
        """Tables of rollouts, the roofline, single sequences and the engine's time."""
        results = self.results()
        if not results:
            return []
        loads = [
            load
            for result in results
            for side in [result, *result["peers"].values()]
            for load in side["others_load"]
        ]
        tables = [
            Table(
                "Rollouts: median (lowest..highest)",
                [row for result in results for row in _rows(result)],
                [*self._missing(), *self.failures, *load_warning(loads)],
            ),
            roofline_table("Rollouts under the roofline", results),
        ]
        if singles := [result for result in results if result["decoding"]]:
            tables.append(_decoding_table(singles))
        tables.append(
            Table(
                "zerogap's engine: seconds a run",
                [{"shape": result["shape"], **result["seconds_by_part"]} for result in results],
            )
        )
        for shape, runs in self._runs.items():
            if runs.profile:
                tables.append(profile_table(f"{shape}: where the time goes", runs.profile))
        return tables

    def report(self) -> dict[str, Any]:
        """Every shape's numbers, and which peers are missing."""
        notes = [*self._missing(), *self.failures]
        return {"shapes": self.results(), "notes": notes, "versions": self._versions}

    def results(self) -> list[dict[str, Any]]:
        """Results of every shape that has been measured at least once."""
        return [self._result(shape, runs) for shape, runs in self._runs.items() if runs.ours]

    def _start_peers(self, setting: Setting, stack: ExitStack) -> dict[str, Side]:
        found: dict[str, Side] = {}
        shapes = [shape for shape in self._shapes if self._is_for_peers(shape)]
        for name in PEERS:
            if not (shapes and self._choice.takes(name)):
                continue
            setting.say(f"rollout: starting {name}")
            try:
                side = start_rollout(name, self._choice, setting.prepared, shapes)
                found[name] = stack.enter_context(side)
                if isinstance(side, VllmSide):
                    self._versions[name] = side.version
            except BenchmarkError as error:
                self._fail(setting, name, error)
        return found

    def _measure_shape(
        self, setting: Setting, shape: RunShape, ours: Worker, peers: dict[str, Side]
    ) -> None:
        runs = self._runs[shape]
        for repeat in range(self._repeats):
            runs.ours.append(ours.call("run", shape=shape, seed=repeat))
            _say_done(setting, shape, repeat, "zerogap", runs.ours[-1].seconds)
            for name in list(peers) if self._is_for_peers(shape) else ():
                try:
                    self._measure_peer(setting, shape, repeat, name, peers[name])
                except BenchmarkError as error:
                    self._fail(setting, name, error)
                    del peers[name]
        if self._profile:
            runs.profile = ours.call("profile", shape=shape, seed=self._repeats)

    def _measure_peer(
        self, setting: Setting, shape: RunShape, repeat: int, name: str, side: Side
    ) -> None:
        variants = self._runs[shape].peers.setdefault(name, {})
        for variant, arguments in _VARIANTS[name].items():
            measured = side.call("run", shape=shape, seed=repeat, **arguments)
            variants.setdefault(variant, []).append(measured)
            _say_done(setting, shape, repeat, variant, measured.seconds)

    def _is_for_peers(self, shape: RunShape) -> bool:
        return self._all_peers or shape.num_sequences <= _FEW_SEQUENCES

    def _fail(self, setting: Setting, name: str, error: BenchmarkError) -> None:
        setting.say(f"{name}: {error}")
        self.failures.append(f"{name} failed: {str(error).strip().splitlines()[-1]}")

    def _missing(self) -> list[str]:
        asked = [name for name in PEERS if name in self._choice.names]
        reasons = {name: self._choice.why_not(name) for name in asked}
        notes = [f"{name}: {reason}" for name, reason in reasons.items() if reason is not None]
        alone = [str(shape) for shape in self._shapes if not self._is_for_peers(shape)]
        if asked and alone:
            notes.append(f"{', '.join(alone)}: only zerogap was measured; --all-peers measures the others too")  # fmt: skip
        return notes

    def _result(self, shape: RunShape, runs: _Runs) -> dict[str, Any]:
        model = self._model
        assert model is not None, "something was measured, so the model is known"
        result = summarise(
            model, shape, runs.ours, lambda run: {"generate": rollout_work(model, run)}
        )
        peers = {
            variant: summarise_peer(shape, measured, runs.ours)
            for variants in runs.peers.values()
            for variant, measured in variants.items()
        }
        ratios = {
            # Relative to a peer's fastest variant, though zerogap always computes log-probs.
            f"ratio_to_{name.replace('.', '_')}": min(
                peers[variant]["ratio"]["median"] for variant in variants
            )
            for name, variants in runs.peers.items()
            if variants
        }
        profile = {"profile": runs.profile.rows} if runs.profile else {}
        decoding = summarise_decoding(model, runs.ours)
        return result | ratios | {"decoding": decoding, "peers": peers} | profile


def roofline_table(title: str, results: Sequence[dict[str, Any]]) -> Table:
    """Each phase: its work, its rate, and the machine's limit."""
    return Table(
        title,
        [
            {
                "shape": result["shape"],
                "phase": name,
                "seconds": phase["seconds"],
                "GFLOP": phase["body_gflop"] + phase["head_gflop"] + phase["attention_gflop"],
                "of it attention": show_share(_attention_share(phase)),
                "GFLOP/s": phase["gflops"],
                # A single sequence is bound by memory, so the GEMM limit says nothing.
                "limit GFLOP/s": None if result.get("decoding") else phase["limit_gflops"],
                "share of limit": show_share(
                    None if result.get("decoding") else phase["share_of_limit"]
                ),
                "FMA peak GFLOP/s": result["fma_peak_gflops"],
                "share of FMA peak": show_share(phase["share_of_fma_peak"]),
            }
            for result in results
            for name, phase in result["phases"].items()
        ],
    )


def _attention_share(phase: dict[str, float]) -> float:
    total = phase["body_gflop"] + phase["head_gflop"] + phase["attention_gflop"]
    return phase["attention_gflop"] / total


def _decoding_table(results: Sequence[dict[str, Any]]) -> Table:
    return Table(
        "A single sequence against memory bandwidth: each token reads every matrix and the context's keys and values once",
        [
            {
                "shape": result["shape"],
                "ms a token": show_spread(result["decoding"]["ms_per_token"]),
                "MB a token": result["decoding"]["bytes_per_token"] / 1e6,
                "GB/s": result["decoding"]["gb_s"],
                "read GB/s": result["decoding"]["read_gb_s"],
                "share": show_share(result["decoding"]["share_of_read"]),
                "copy GB/s": result["decoding"]["copy_gb_s"],
                "share of copy": show_share(result["decoding"]["share_of_copy"]),
            }
            for result in results
        ],
        ["copy counts bytes read plus bytes written"],
    )


def _rows(result: dict[str, Any]) -> list[dict[str, str]]:
    before, after = result["limit_gflops_before"], result["limit_gflops_after"]
    # A single sequence is bound by memory; another table shows its share.
    is_single = result["decoding"] is not None
    ours = {
        "shape": result["shape"],
        "side": "zerogap, with log-probs",
        "output tokens/s": show_spread(result["spread"]["tokens_per_s"]),
        "share of limit": "-" if is_single else show_share(result["share_of_limit"]),
        "limit GFLOP/s, before..after": "-" if is_single else f"{before:.1f}..{after:.1f}",
        "peak GB": f"{result['peak_rss_gb']:.2f}",
        "zerogap is faster by": "",
    }
    peers = [
        {
            **dict.fromkeys(ours, ""),
            "shape": result["shape"],
            "side": variant,
            "output tokens/s": show_spread(peer["tokens_per_s"]),
            "peak GB": f"{peer['peak_rss_gb']:.2f}",
            "zerogap is faster by": f"{show_spread(peer['ratio'])}x",
        }
        for variant, peer in result["peers"].items()
    ]
    return [ours, *peers]


def _say_done(setting: Setting, shape: RunShape, repeat: int, side: str, seconds: float) -> None:
    setting.say(f"rollout {shape}, run {repeat + 1}, {side}: {seconds:.1f} s")
