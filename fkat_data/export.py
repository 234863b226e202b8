"""Loaders' statistics as metrics of ``prometheus_client``, and a file of them for node_exporter's textfile collector."""

from fkat_data.integrations.prometheus import METRICS, Metric, PrometheusFile, StatisticsSource, prometheus_text

__all__ = ["METRICS", "Metric", "PrometheusFile", "StatisticsSource", "prometheus_text"]
