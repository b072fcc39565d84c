"""Benchmarks of zerogap: as a share of the machine's limit, and beside installed alternatives.

Comes in: a model and a question. Goes out: tables for people and one JSON report. The sides of a question alternate,
each in its own process (``sides/``). This package imports neither torch nor a peer, so no side affects the memory or
timing of another.
"""

from zerogap_bench.options import BenchOptions
from zerogap_bench.shapes import RunShape
from zerogap_bench.suite import Benchmark, build_benchmark

__all__ = ["BenchOptions", "Benchmark", "RunShape", "build_benchmark"]
