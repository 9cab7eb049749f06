"""What was seen: the request record, histograms, windows, the database schema. Pure."""
