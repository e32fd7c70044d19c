"""`python -m raftq`: the command line."""

from raftq.cli import main

if __name__ == "__main__":
    main()
