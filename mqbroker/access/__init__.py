"""Who may do what on a broker: accounts, their permissions and signatures. Must never know of topics or stores."""
