"""`python -m ampkit`: the command line."""

from ampkit_cli import main

if __name__ == "__main__":  # worker processes of a DataLoader load this file under another name
    raise SystemExit(main())
