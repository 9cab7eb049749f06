"""Grafana boards as code, and publishing them."""
