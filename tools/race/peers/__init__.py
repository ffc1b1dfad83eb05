"""The programs of the other contestants; each can be run alone, with the arguments that `--help` shows."""
