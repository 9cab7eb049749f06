"""How one request travels: connections, HTTP/1.1, event streams, the receive clock. Knows nothing of Locust."""
