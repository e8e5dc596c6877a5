"""Several devices and several processes that train together."""
