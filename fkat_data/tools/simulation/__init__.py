"""Simulate a streaming run without data: what it waits for, fetches and caches, and what to change."""
