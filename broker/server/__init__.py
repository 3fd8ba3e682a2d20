"""The listening socket, its connections, and the dispatch of requests."""
