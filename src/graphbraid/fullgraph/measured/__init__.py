"""What was measured to decide a lowering: rates, trials on the very operands, and the evidence kept."""
