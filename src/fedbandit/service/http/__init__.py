"""The HTTP side of the service: routes, limits, errors, connections."""
