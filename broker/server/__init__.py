"""The network: a listening socket, its connections, their responses in order."""
