"""What inference servers say of themselves in Prometheus text: reading it, and one set of names for all engines.

Pure: it knows texts, names and differences. Fetching is the master's.
"""
