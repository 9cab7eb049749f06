"""What to send: mixes, lengths, prompts, arrivals, traces. Pure: no I/O but reading files, no gevent, no Locust."""
