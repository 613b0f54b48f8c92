"""docs/api.md, run as it stands: each command against a real relay, each answer compared.

The page says in a comment how its blocks are meant. The sh blocks are one shell session, the
Python blocks one program. Neither needs a curl: a stand-in takes the few options that the page
uses and refuses every other; where there is a curl, the page is run with that as well.
"""

import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from config.kernel.problems import catalogue
from config.trial.envfile import write_env_file
from tests import contract
from tests.client import make_provisioner
from tests.conftest import PROJECT, RelayProcess

PAGE = PROJECT / "docs" / "api.md"
RUN, ANSWERS, SHOWN = {"sh", "python"}, {"http", "text"}, {"json", "mermaid", "console"}
#: What the page tells people to type and this test does not; tests of their own run both.
CONSOLE = ["$ make up", "$ node docs/examples/client.mjs README.md"]

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
#: Members whose text the page can only give an example of.
OPAQUE = {"next_cursor": r"[A-Za-z0-9_-]+", "request_id": r"[A-Za-z0-9._-]{1,64}"}
MARK = "\x1e"


# --- The page --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the number of its opening line."""

    language: str
    text: str
    line: int


def blocks() -> list[Block]:
    """Every fenced block of the page, in order."""
    found: list[Block] = []
    opened: tuple[str, int] | None = None
    lines: list[str] = []
    for number, line in enumerate(PAGE.read_text("utf-8").splitlines(), 1):
        fence = re.fullmatch(r"\s*```(\S*)\s*", line)
        if fence is None:
            lines.append(line)
        elif opened is None:
            opened, lines = (fence.group(1), number), []
        else:
            found.append(Block(opened[0], "\n".join(lines), opened[1]))
            opened = None
    assert opened is None, f"the block of line {opened and opened[1]} does not end"
    return found


def with_answers(language: str) -> list[tuple[Block, Block | None]]:
    """The blocks to run, each with the answer that follows it, if one does."""
    everything = blocks()
    following = [*everything[1:], None]
    return [
        (block, after if after is not None and after.language in ANSWERS else None)
        for block, after in zip(everything, following, strict=True)
        if block.language == language
    ]


def program(language: str, mark: str) -> str:
    """All blocks of a language as one program, on the very lines that they have in the page.

    In place of each opening fence it prints a mark, `mark` with the number of that line.
    """
    lines = [""] * len(PAGE.read_text("utf-8").splitlines())
    for block in blocks():
        if block.language == language:
            lines[block.line - 1] = mark.format(block.line)
            text = block.text.split("\n")
            lines[block.line : block.line + len(text)] = text
    return "\n".join(lines) + "\n"


def outputs(stdout: str) -> dict[int, str]:
    """What each block printed, by the number of its line."""
    _, *parts = re.split(f"{MARK}(\\d+){MARK}\n", stdout)
    return {int(line): text for line, text in zip(parts[::2], parts[1::2], strict=True)}


# --- Comparing -------------------------------------------------------------------------------


@dataclass
class Comparison:
    """The page's answers against the real ones; an id of the page always means the same id."""

    meaning: dict[str, str] = field(default_factory=dict)

    def text(self, shown: str, real: str, where: str) -> None:
        """Equal but for ids and times."""
        pattern = f"({UUID}|{TIME})"
        here, there = re.split(pattern, shown.strip()), re.split(pattern, real.strip())
        assert here[::2] == there[::2], f"{where}: shown {shown!r}, real {real!r}"
        for one, other in zip(here[1::2], there[1::2], strict=True):
            self._bind(one, other, where)

    def http(self, shown: str, real: str, where: str) -> None:
        """The same status, the headers that are shown, and the same document."""
        head, _, body = shown.partition("\n\n")
        real_head, _, real_body = real.replace("\r\n", "\n").partition("\n\n")
        status, *headers = head.splitlines()
        real_status, *real_headers = real_head.splitlines()
        assert real_status.strip() == status, f"{where}: {real_status}\n{real_body}"
        sent = dict(_header(line) for line in real_headers)
        for name, value in map(_header, headers):
            assert sent.get(name) == value, f"{where}: {name} is {sent.get(name)!r}"
        self.json(json.loads(body), json.loads(real_body), where)

    def json(self, shown: Any, real: Any, where: str, member: str = "") -> None:
        """The same members, types and values."""
        where = f"{where}/{member}" if member else where
        assert type(real) is type(shown), f"{where}: shown {shown!r}, real {real!r}"
        if isinstance(shown, dict):
            assert list(real) == list(shown), f"{where}: real members {list(real)}"
            for name in shown:
                self.json(shown[name], real[name], where, name)
        elif isinstance(shown, list):
            assert len(real) == len(shown), f"{where}: {len(real)} entries"
            for index, (one, other) in enumerate(zip(shown, real, strict=True)):
                self.json(one, other, where, str(index))
        elif member in OPAQUE:
            assert re.fullmatch(OPAQUE[member], real), f"{where}: {real!r}"
            self._bind(shown, real, where)
        elif shown == "…":
            assert real, f"{where} is empty"
        elif isinstance(shown, str):
            self.text(shown, real, where)
        else:
            assert real == shown, f"{where}: shown {shown!r}, real {real!r}"

    def _bind(self, shown: str, real: str, where: str) -> None:
        kinds = [re.fullmatch(TIME, one) is None for one in (shown, real)]
        assert kinds[0] == kinds[1], f"{where}: {real!r} is no {shown!r}"
        assert self.meaning.setdefault(shown, real) == real, (
            f"{where}: {shown!r} was {self.meaning[shown]!r} before and is {real!r} here"
        )
        same = [one for one, other in self.meaning.items() if other == real]
        assert same == [shown], f"{where}: one real value is shown as {same}"


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()


# --- Running ---------------------------------------------------------------------------------


def curl(arguments: list[str]) -> None:
    """curl as far as docs/api.md uses it. Stands alone: its source becomes a script."""
    import argparse
    import http.client
    import sys
    from urllib.parse import urlsplit

    parser = argparse.ArgumentParser(prog="curl", allow_abbrev=False)
    parser.add_argument("-s", action="store_true", required=True)
    parser.add_argument("-S", action="store_true", required=True)
    parser.add_argument("-i", action="store_true", dest="show_head")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", dest="data")
    parser.add_argument("url")
    options = parser.parse_args(arguments)
    if (options.data or "").startswith("@"):
        parser.error("-d with a file is more than this stand-in knows")
    # What the real one sends with -d, unless a -H says otherwise.
    headers = {"content-type": "application/x-www-form-urlencoded"} if options.data else {}
    for line in options.headers:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    url = urlsplit(options.url)
    path = url.path + (f"?{url.query}" if url.query else "")
    method = options.method or ("GET" if options.data is None else "POST")
    body = None if options.data is None else options.data.encode()
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=30)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    if options.show_head:
        head = [f"HTTP/1.1 {answer.status} {answer.reason}"]
        head += [f"{name}: {value}" for name, value in answer.getheaders()]
        sys.stdout.write("\r\n".join([*head, "", ""]))
    sys.stdout.write(answer.read().decode())


def put_stand_in(directory: Path) -> None:
    """An executable `curl` in a directory."""
    directory.mkdir()
    source = directory / "curl.py"
    call = "import sys\ncurl(sys.argv[1:])\n"
    source.write_text(f"{inspect.getsource(curl)}\n{call}", "utf-8")
    script = directory / "curl"
    command = shlex.join([sys.executable, "-IS", str(source)])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', "utf-8")
    script.chmod(0o755)


@dataclass(frozen=True)
class Reader:
    """Somebody with the page, a relay that `make up` left, and a directory of their own."""

    home: Path
    relay: dict[str, str]

    def run(self, *command: str, text: str, before_path: tuple[Path, ...] = ()) -> dict[int, str]:
        """What each block of a program printed."""
        script = self.home / "program"
        script.write_text(text, "utf-8")
        path = [*map(str, before_path), str(Path(sys.executable).parent), os.environ["PATH"]]
        done = subprocess.run(
            [*command, str(script)],
            cwd=self.home,
            env={"PATH": os.pathsep.join(path), "NO_PROXY": "*", "LANG": "C.UTF-8", **self.relay},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # Line numbers in what it says are those of the page.
        assert (done.returncode, done.stderr) == (0, ""), f"{done.stderr}\n{done.stdout[-2000:]}"
        return outputs(done.stdout)


@pytest.fixture
def reader(relay_process: RelayProcess, tmp_path: Path) -> Reader:
    """The reader of the page."""
    variables = {
        "RELAY_URL": relay_process.url,
        "RELAY_DEMO_PROVISIONER_TOKEN": make_provisioner().token,
    }
    (tmp_path / ".relay").mkdir()
    write_env_file(tmp_path / ".relay" / "env", variables)
    return Reader(tmp_path, variables)


def compare(language: str, printed: dict[int, str]) -> int:
    """Hold each answer of the page against what was printed; returns how many there were."""
    comparison, compared = Comparison(), 0
    for block, answer in with_answers(language):
        where = f"docs/api.md:{block.line}"
        if answer is None:
            assert printed[block.line] == "", f"{where} prints what the page does not show"
            continue
        check = comparison.http if answer.language == "http" else comparison.text
        check(answer.text, printed[block.line], where)
        compared += 1
    return compared


@pytest.mark.parametrize("which", ["stand-in", *(["curl"] if shutil.which("curl") else [])])
def test_every_shell_block_gets_the_answer_that_is_shown(reader: Reader, which: str) -> None:
    before_path: tuple[Path, ...] = ()
    if which == "stand-in":
        before_path = (reader.home / "bin",)
        put_stand_in(before_path[0])
    text = program("sh", f"printf '{MARK}%s{MARK}\\n' {{}}")
    printed = reader.run("sh", "-eu", text=text, before_path=before_path)
    assert compare("sh", printed) >= 15


def test_every_python_block_gets_the_answer_that_is_shown(reader: Reader) -> None:
    printed = reader.run(sys.executable, text=program("python", f"print('{MARK}{{}}{MARK}')"))
    assert compare("python", printed) >= 8


# --- What the page must have -----------------------------------------------------------------


def test_every_block_is_run_or_known_not_to_be() -> None:
    assert {block.language for block in blocks()} <= RUN | ANSWERS | SHOWN
    assert [block.text for block in blocks() if block.language == "console"] == CONSOLE
    everything = blocks()
    for before, block in itertools.pairwise(everything):
        if block.language in ANSWERS:
            assert before.language in RUN, f"line {block.line}: an answer to nothing"


def sections() -> Iterator[tuple[str, str]]:
    """Each section of the third level: its heading and its text."""
    for part in re.split(r"^#{2,3} (?=\S)", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        yield heading, text


def test_every_call_of_the_schema_is_there_by_curl_and_in_python() -> None:
    texts = dict(sections())
    for path, operations in contract.schema()["paths"].items():
        for method in operations:
            text = texts.get(f"`{method.upper()} {path}`")
            assert text is not None, f"docs/api.md has no section on {method.upper()} {path}"
            for language in ("sh", "python"):
                assert f"```{language}\n" in text, f"{method.upper()} {path}: no {language} block"


def test_the_retry_table_has_every_code_as_the_catalogue_has_it() -> None:
    row = re.compile(r"^\| (\d{3}) \| `([A-Z_]+)` \| (yes|no) \| (.+?) \| .+ \|$", re.MULTILINE)
    rows = row.findall(PAGE.read_text("utf-8"))
    assert sorted((int(status), code, again == "yes") for status, code, again, _ in rows) == sorted(
        (problem.status, problem.code, problem.retryable) for problem in catalogue()
    )
    for _, code, again, wait in rows:
        assert (wait != "–") == (again == "yes"), f"{code}: to wait is to try again"


def test_every_link_leads_somewhere() -> None:
    text = PAGE.read_text("utf-8")
    anchors = {_anchor(heading) for heading, _ in sections()}
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert targets
    for target in targets:
        if target.startswith("#"):
            assert target[1:] in anchors, target
        else:
            assert (PAGE.parent / target).is_file(), target


def _anchor(heading: str) -> str:
    """The anchor that a forge gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- The comparison itself -------------------------------------------------------------------

ID = "c0ffee00-5b1d-4c2a-8a8e-2f6b7d9e1a01"
OTHER_ID = "0b5e55ed-7a1c-4f3b-9c2d-8e4f5a6b7c02"


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ({"size": 19}, {"size": 20}),
        ({"size": 19}, {"size": "19"}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ([1], []),
        (["accepted"], ["duplicate"]),
        ([ID], ["not an id"]),
        ([ID], ["2026-12-01T09:30:00.123456Z"]),
        ([ID, ID], [ID, OTHER_ID]),
        ([ID, OTHER_ID], [ID, ID]),
        ({"request_id": "abc"}, {"request_id": ""}),
        (["…"], [""]),
    ],
)
def test_a_page_that_shows_something_else_is_found_out(shown: Any, real: Any) -> None:
    with pytest.raises(AssertionError):
        Comparison().json(shown, real, "here")


def test_ids_and_times_stand_for_whatever_comes() -> None:
    shown = {"id": ID, "at": "2026-12-01T09:30:00.123456Z", "text": f"{ID} twice"}
    real = {"id": OTHER_ID, "at": "2030-01-01T00:00:00.000000Z", "text": f"{OTHER_ID} twice"}
    Comparison().json(shown, real, "here")
