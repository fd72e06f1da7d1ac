"""`python -m erlcli` is the `erl` command."""

from erlcli.cli.app import main

if __name__ == "__main__":
    main()
