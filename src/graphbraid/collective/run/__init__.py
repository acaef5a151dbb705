"""Plans in motion: stages, the executor that follows a plan, what is measured and changes meanwhile."""
