"""Running a plan: stage operators, the executor, the profiler, and replanning when durations drift."""
