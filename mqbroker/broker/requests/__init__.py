"""The request handlers of a broker, a module per family. Codes and their modules: docs/reference/requests.rst."""
