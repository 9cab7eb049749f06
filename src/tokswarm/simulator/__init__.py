"""The simulated endpoint: a batching queue with a finite KV cache.

`engine`, `kv`, `profile` and `words` are pure; `driver` gives the engine real time; `http1`, `api`,
`answers`, `metrics` and `truth` are the server around it; `server` and `command` run it.
"""
