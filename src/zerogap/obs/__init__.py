"""Metrics: names and reducers, clocks and spans, progress, and the sinks that write them.

In: names and numbers. Out: files and console lines. Nothing here imports torch, decides anything about the run, or reads
its own output (except to cut off an incomplete line when a run resumes).
"""

from zerogap.obs.clock import Clock, format_duration, monotonic_s, stamp
from zerogap.obs.console import ConsoleSink
from zerogap.obs.jsonl import JsonlFile, read_jsonl
from zerogap.obs.metrics import (
    ALARM_KINDS,
    GAP_SOURCES,
    METRICS,
    WEIGHED_SOURCES,
    AlarmKind,
    Metric,
    StepMetrics,
    is_reward_part,
    metric,
)
from zerogap.obs.progress import Phase, Progress
from zerogap.obs.sinks import JsonlSink, Metrics, MetricSink
from zerogap.obs.spans import Spans
from zerogap.obs.tensorboard import TensorBoardSink
from zerogap.obs.whole_file import building, written_whole

__all__ = [
    "ALARM_KINDS",
    "GAP_SOURCES",
    "METRICS",
    "WEIGHED_SOURCES",
    "AlarmKind",
    "Clock",
    "ConsoleSink",
    "JsonlFile",
    "JsonlSink",
    "Metric",
    "MetricSink",
    "Metrics",
    "Phase",
    "Progress",
    "Spans",
    "StepMetrics",
    "TensorBoardSink",
    "building",
    "format_duration",
    "is_reward_part",
    "metric",
    "monotonic_s",
    "read_jsonl",
    "stamp",
    "written_whole",
]
