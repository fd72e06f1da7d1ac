"""The `erl` command, as `python -m erlcli` too.

Commands that train have PyTorch imported by another process while this one imports its own libraries.
"""

import sys

TRAINS = ("train", "resume", "tournament")
HELPS = {"-h", "--help"}


def main() -> None:
    """Entry point."""
    command, arguments = sys.argv[1:2], sys.argv[2:]
    if command and command[0] in TRAINS and arguments and not HELPS & set(arguments):
        from erlcli.engine import child

        child.prepare()
    from erlcli.cli import app

    app.main()


if __name__ == "__main__":
    main()
