"""The networks: their architectures, layers and arrays."""
