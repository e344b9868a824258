"""The reference page has every public name of the package, as the package describes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import HERE, ROOT, environment


def test_the_reference_page_is_that_of_the_package(package: Path) -> None:
    given = environment(package, PYTHONIOENCODING="utf-8")
    command = [sys.executable, str(HERE / "reference.py")]
    made = subprocess.run(command, env=given, capture_output=True, encoding="utf-8", check=True)
    page = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    assert made.stdout == page, "make docs/python-api.md anew: see the first lines of tests/reference.py"
