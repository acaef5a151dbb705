"""Shards: mini-batches of a graph whose lists and features are divided among ranks."""
