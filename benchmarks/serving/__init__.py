"""Serving: how long requests to the example service wait."""
