"""HTTP: routes, middleware, limits, errors, connections."""
