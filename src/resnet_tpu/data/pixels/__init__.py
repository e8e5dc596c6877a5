"""From the bytes of an image file to the pixels that the network sees."""
