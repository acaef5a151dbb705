"""Rows by id, wherever they lie: in tables of the host, hot ones on a device, or shared by devices."""
