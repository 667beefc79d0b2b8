"""The name server: a registry of live brokers and their topics."""
