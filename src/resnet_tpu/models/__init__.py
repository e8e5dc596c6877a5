"""The networks: their architectures, layers and arrays, made from options, which are checked here."""
