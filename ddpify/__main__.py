"""`python -m ddpify` is `ddpify`."""

from __future__ import annotations

from ddpify.cli import main

if __name__ == "__main__":
    main()
