"""Trials: copies of a run on which its steps, its batches and its memory are tried before it starts."""
