"""Loaders' statistics for monitoring: as a file that Prometheus' node_exporter reads."""

from fkat_data.export.metrics import METRICS, Metric, StatisticsSource
from fkat_data.export.prometheus_file import PrometheusFile
from fkat_data.export.prometheus_text import prometheus_text

__all__ = [
    "METRICS",
    "Metric",
    "PrometheusFile",
    "StatisticsSource",
    "prometheus_text",
]
