"""The requests a broker answers, one module for each family of them."""
