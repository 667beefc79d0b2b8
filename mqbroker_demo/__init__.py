"""What `mq demo` runs: the whole system under load, a broker killed on the way, and the count of what arrived."""
