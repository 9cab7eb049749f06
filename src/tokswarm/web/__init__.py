"""The HTTP API and the pages of the master."""
