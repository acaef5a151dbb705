"""Reads of rows by id: from tables of the host, from hot rows on a device, or from rows shared by devices."""
