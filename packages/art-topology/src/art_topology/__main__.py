"""``python -m art_topology``: the command ``art-topology``."""

from art_topology.command import main

if __name__ == "__main__":
    main()
