"""Reads of rows by id, and their counts: rows in tables of the host, or hot rows of one device or several."""
