"""Run control, the live merge, the run store, Locust's master side."""
