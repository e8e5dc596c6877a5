"""Speed beside others, in runs that alternate."""
