"""Planning: stage times, lower bounds, the simulator, and the scheduler that divides the batches."""
