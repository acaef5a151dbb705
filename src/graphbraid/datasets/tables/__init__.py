"""Tables: graphs from CSV, Parquet or tables in memory, with node types and relations or without."""
