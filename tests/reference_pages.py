"""Writes all generated parts of the reference anew: `python -m tests.reference_pages`."""

import subprocess
import sys

PAGES = ("settings_page", "commands_page", "protocol_page", "record_page", "log_events_page")

if __name__ == "__main__":
    for page in PAGES:
        subprocess.run([sys.executable, "-m", f"tests.{page}"], check=True)
    subprocess.run([sys.executable, "docs/diagrams.py"], check=True)
