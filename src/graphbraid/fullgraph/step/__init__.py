"""One training step: tasks on buffers in one arena, planned once and run every epoch."""
