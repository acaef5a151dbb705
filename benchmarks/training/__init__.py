"""How long an epoch of sampled training takes, and what decides it."""
