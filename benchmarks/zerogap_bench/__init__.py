"""How fast zerogap is here: as a share of what the machine allows, and beside the alternatives that are installed.

Comes in: a model and a question. Goes out: tables for people and one report for programs. A question is measured by
sides that take turns, each in a process of its own (``sides/``); nothing of torch or of a peer is imported here, so
that no side is in another's memory or timing.
"""

from zerogap_bench.options import BenchOptions
from zerogap_bench.shapes import RunShape
from zerogap_bench.suite import Benchmark, build_benchmark

__all__ = ["BenchOptions", "Benchmark", "RunShape", "build_benchmark"]
