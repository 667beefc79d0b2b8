"""The remoting protocol on Twisted: connections, handler table, server and client."""
