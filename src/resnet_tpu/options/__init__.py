"""What can be chosen: options with their kinds, defaults and help, and where their values come from."""
