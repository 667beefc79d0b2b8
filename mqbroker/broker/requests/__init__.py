"""The requests that a broker answers, a module for each family. Which code is answered where: docs/protocol.rst."""
