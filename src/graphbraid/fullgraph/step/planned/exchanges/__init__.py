"""Exchanges of rows between ranks, and the tasks that run while rows are on their way."""
