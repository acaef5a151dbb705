"""The files of a run: checkpoints, logs, and what they belong to."""
