"""The behaviour of a broker: its tables of topics, groups, offsets and clients, and the requests over them."""
