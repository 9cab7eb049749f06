"""Stand-ins that satisfy our protocols, for tests of what stands on them."""
