"""Loaders' statistics for monitoring: as a file that Prometheus' node_exporter reads."""

from fkat_data.export.prometheus import METRICS, Metric, PrometheusFile, StatisticsSource, prometheus_text

__all__ = [
    "METRICS",
    "Metric",
    "PrometheusFile",
    "StatisticsSource",
    "prometheus_text",
]
