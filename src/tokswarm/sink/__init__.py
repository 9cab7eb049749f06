"""Where records go: the record log, line protocol, InfluxDB, Parquet."""
