"""The protocol on Twisted: connections, the table of handlers, the server and the client."""
