"""Files: atomic writes, checksums, checks against a schema, and the folders of the cache."""
