"""The console and the HTTP API."""
