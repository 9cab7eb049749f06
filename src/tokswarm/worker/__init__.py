"""What a worker node runs: the arrival engine, the recorder, Locust's worker side."""
