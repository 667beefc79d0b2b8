"""Access control of a broker: accounts, permissions and signatures. Knows nothing of topics or stores."""
