"""Plans on paper: times of stages, bounds, the simulator, the scheduler that finds who prepares what."""
