"""Where things run: jars, broker configuration, images. One folder per service."""
