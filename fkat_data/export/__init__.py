"""Loaders' statistics for monitoring: as a file that Prometheus' node_exporter reads, and through OpenTelemetry."""

from fkat_data.export.metrics import METRICS, Metric, StatisticsSource
from fkat_data.export.open_telemetry import export_to_open_telemetry
from fkat_data.export.prometheus_file import PrometheusFile
from fkat_data.export.prometheus_text import prometheus_text

__all__ = [
    "METRICS",
    "Metric",
    "PrometheusFile",
    "StatisticsSource",
    "export_to_open_telemetry",
    "prometheus_text",
]
