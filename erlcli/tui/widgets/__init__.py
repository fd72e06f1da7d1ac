"""One file a widget; each shows what it is given and reads no files."""
