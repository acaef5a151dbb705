"""Tiers: which rows are read, and what moving them to where they are read from takes and saves."""
