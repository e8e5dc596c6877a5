"""Where the time of a training goes: in its input, in its steps."""
