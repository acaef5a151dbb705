"""Emitting: the engine's planned step, recorded kernel by kernel, becomes source code for a target."""
