"""One file a command; `app` wires them."""
