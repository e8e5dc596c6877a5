"""Options, with their types, defaults and help, and the sources of their values."""
