"""Connections to tool servers: transports, processes, sessions, deadlines and the owner task."""
