"""The daemons: how the name server and the broker are started, told things by signals, and stopped."""
