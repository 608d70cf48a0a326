"""The demo: a server and a fleet of agent processes that learn from real images while one of them is killed."""
