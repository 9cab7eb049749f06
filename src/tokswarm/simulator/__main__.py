"""`python -m tokswarm.simulator`."""

from tokswarm.simulator.command import main

if __name__ == "__main__":
    main()
