"""Rows by id, copied from tables in one or several memories, and scattered back."""
