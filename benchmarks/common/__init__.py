"""What every benchmark shares: contenders in turn, options, a quiet machine, results as lines of JSON."""
