"""The simulated endpoint: a batching queue with a finite KV cache."""
