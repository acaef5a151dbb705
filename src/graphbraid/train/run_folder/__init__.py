"""The files of a run: checkpoints, logs and plans, and checks that they belong to the run."""
