"""The daemons: start, signals and stop of the name server and the broker."""
