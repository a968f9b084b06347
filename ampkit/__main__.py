"""`python -m ampkit`: the command line."""

from .cli import main

raise SystemExit(main())
