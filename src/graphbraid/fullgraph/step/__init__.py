"""One training step: tasks in one arena, planned once, run every epoch."""
