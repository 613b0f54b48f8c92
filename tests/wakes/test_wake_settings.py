"""Settings of wakes that cannot be right stop the start with one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT

SECRET = "s" * 32
LONG_ENOUGH = {"WAKE_GATEWAY_SECRET": SECRET}


def start(*, whole: bool = False, **settings: str) -> subprocess.CompletedProcess[str]:
    """Read the settings, or with `whole` start everything up to the database."""
    code = "import django; django.setup()" if whole else "import config.settings"
    environment = {name: value for name, value in os.environ.items() if "WAKE" not in name}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        env={**environment, "DJANGO_SETTINGS_MODULE": "config.settings", **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


IMPOSSIBLE = [
    ("WAKE_EGRESS_ALLOW", "10.0.0.0/8,bad host", "a comma-separated list of hosts and networks"),
    ("WAKE_EGRESS_ALLOW", "10.1.2.3/8", "a comma-separated list of hosts and networks"),
    ("WAKE_GATEWAY_SECRET", "s" * 31, "at least 32 characters"),
    ("WAKE_VAPID_KEY_FILE", "/nowhere", "the path of a readable file"),
    ("WAKE_VAPID_CONTACT", "ops@example.org", "a mailto: or https:// address"),
    ("WAKE_CA_FILE", "/nowhere", "the path of a readable file"),
    ("WAKE_THREADS", "0", "a whole number from 1 to 256"),
    ("WAKE_PER_HOST", "257", "a whole number from 1 to 256"),
    ("WAKE_DEBOUNCE_MS", "60001", "a whole number from 0 to 60000"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), IMPOSSIBLE)
def test_an_impossible_value_is_named_with_what_is_allowed(
    name: str, value: str, allowed: str
) -> None:
    done = start(**{name: value})
    assert done.returncode == 2
    assert done.stderr.startswith(f"{name}=")
    assert done.stderr.endswith(f"it must be {allowed}.\n")
    assert (value in done.stderr) is (name != "WAKE_GATEWAY_SECRET")


GATEWAY_URLS = [
    ("https://gateway.example/wake", "", True),
    ("http://gateway.example/wake", "", False),
    ("http://gateway.example/wake", "gateway.example", True),
    ("http://gateway.example/wake", "10.0.0.0/8", False),
    ("http://127.0.0.1:9000/", "127.0.0.0/8", True),
    ("http://127.0.0.1:9000/", "localhost", False),
    ("https://user:word@gateway.example/", "", False),
    ("https://gateway.example/#x", "", False),
    ("gateway.example", "", False),
]


@pytest.mark.parametrize(("url", "allow", "is_possible"), GATEWAY_URLS)
def test_the_gateway_speaks_tls_unless_its_host_is_named(
    url: str, allow: str, is_possible: bool
) -> None:
    done = start(WAKE_GATEWAY_URL=url, WAKE_EGRESS_ALLOW=allow, WAKE_GATEWAY_SECRET=SECRET)
    assert (done.returncode == 0) is is_possible
    if not is_possible:
        assert done.stderr.startswith("WAKE_GATEWAY_URL=")


def test_the_gateway_needs_both_its_address_and_its_secret() -> None:
    done = start(WAKE_GATEWAY_URL="https://gateway.example/")
    assert (done.returncode, done.stderr) == (
        2,
        "WAKE_GATEWAY_SECRET is not set: it signs what WAKE_GATEWAY_URL gets.\n",
    )
    done = start(WAKE_GATEWAY_SECRET=SECRET)
    assert (done.returncode, done.stderr) == (
        2,
        "WAKE_GATEWAY_URL is not set: WAKE_GATEWAY_SECRET is of no use without it.\n",
    )


def test_a_file_that_holds_something_else_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file.pem"
    file.write_text("nothing of use")
    done = start(whole=True, WAKE_VAPID_KEY_FILE=str(file))
    assert (done.returncode, done.stderr) == (
        2,
        f"WAKE_VAPID_KEY_FILE: {file} holds no readable private key in PEM without a password.\n",
    )
    done = start(whole=True, WAKE_CA_FILE=str(file))
    assert (done.returncode, done.stderr) == (
        2,
        f"WAKE_CA_FILE: {file} holds no readable certificates in PEM.\n",
    )
