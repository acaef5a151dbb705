"""The places that a step runs on, and what is copied there."""
