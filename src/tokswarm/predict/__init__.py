"""The simulator's engine fitted to a measured run, to predict loads that were not measured.

Joins what the others keep apart: the requests of a run (`traffic`), its figures (`insight`) and the engine
in virtual time (`simulator`). No clock, no socket; it reads a run's folder and nothing else.
"""
