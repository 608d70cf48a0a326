"""The product at work in a minute: a server, a fleet of processes on real images, one of them killed on the way."""
