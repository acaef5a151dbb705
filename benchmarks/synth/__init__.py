"""Synthesised programs beside the in-process engine and PyG."""
