"""`python -m antiphon.learner run.toml`, as `antiphon train run.toml`; what torchrun starts."""

import sys

from antiphon.clients.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["train"]
    main()
