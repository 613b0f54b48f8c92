"""House rules as lint (DESIGN section 2, STYLE 12)."""

import ast
import re
from pathlib import Path

import pytest

from tests.conftest import PROJECT

APPS = ("config", "quotas", "idempotency", "outbox", "relay", "adminui")
MOST_FILE_LINES, MOST_FUNCTION_LINES, MOST_COMMAND_LINES, MOST_JOB_LINES = 420, 45, 50, 5


def _sources(*suffixes: str) -> list[Path]:
    return [
        path
        for app in APPS
        for path in sorted((PROJECT / app).rglob("*"))
        if path.suffix in suffixes and "migrations" not in path.parts
    ]


def _name(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text("utf-8"))
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_no_file_is_too_long() -> None:
    lengths = {_name(path): len(path.read_text("utf-8").splitlines()) for path in _sources(".py")}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    found = {
        f"{_name(path)}:{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for path in _sources(".py")
        for function in _functions(path)
    }
    assert {name: lines for name, lines in found.items() if lines > MOST_FUNCTION_LINES} == {}


def test_a_command_is_a_shell_over_services() -> None:
    commands = [path for path in _sources(".py") if "commands" in path.parts]
    lengths = {_name(path): len(path.read_text("utf-8").splitlines()) for path in commands}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_COMMAND_LINES} == {}


def test_a_job_is_an_entry_point_of_a_few_lines() -> None:
    for path in _sources(".py"):
        if path.name != "jobs.py":
            continue
        for function in _functions(path):
            body = [node for node in function.body if not _is_docstring(node)]
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
            assert lines <= MOST_JOB_LINES, f"{_name(path)}:{function.name}"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_every_module_says_what_it_is_for() -> None:
    without = [
        _name(path)
        for path in _sources(".py")
        if path.read_text("utf-8").strip()
        and not ast.get_docstring(ast.parse(path.read_text("utf-8")))
        and path.name not in ("apps.py", "__init__.py")
    ]
    assert without == []


def test_every_sql_file_says_what_it_is_for_and_takes_parameters_only() -> None:
    for path in _sources(".sql"):
        text = path.read_text("utf-8")
        assert text.startswith("-- "), _name(path)


COMMANDS = sorted(
    path.stem for path in _sources(".py") if "commands" in path.parts and path.stem != "__init__"
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_called_in_some_test(command: str) -> None:
    called = re.compile(rf"[\"'\s]{re.escape(command)}[\"'\s]")
    tests = [path for path in (PROJECT / "tests").rglob("*.py") if path != Path(__file__)]
    assert any(called.search(path.read_text("utf-8")) for path in tests)


def test_only_adminui_registers_model_admins() -> None:
    registers = re.compile(r"admin\.site\.register|@admin\.register|\.register\(.*Admin\b")
    found = [_name(path) for path in _sources(".py") if registers.search(path.read_text("utf-8"))]
    assert all(name.startswith("adminui/") for name in found)


def test_every_advisory_lock_key_is_in_one_place() -> None:
    uses = re.compile(r"pg_(try_)?advisory", re.IGNORECASE)
    found = [
        _name(path) for path in _sources(".py", ".sql") if uses.search(path.read_text("utf-8"))
    ]
    assert found == ["config/kernel/advisory.py"]


def test_nobody_makes_a_logger_but_the_allow_list() -> None:
    """And nobody prints: what is said goes through config.kernel.logs or a command's output."""
    makes = re.compile(r"getLogger\(|structlog\.get_logger|traceback\.print_|\bprint\((?!.*#)")
    found = [
        _name(path)
        for path in _sources(".py")
        if makes.search(re.sub(r"self\.print\(|\.print\(|def print\(", "", path.read_text("utf-8")))
    ]
    assert found == ["config/kernel/logs.py"]


def test_the_kernel_alone_opens_transactions() -> None:
    """Everyone else says durable_transaction(), which refuses to nest."""
    opens = re.compile(r"transaction\.atomic|\batomic\(|set_autocommit|ATOMIC_REQUESTS")
    found = {_name(path) for path in _sources(".py") if opens.search(path.read_text("utf-8"))}
    assert {name for name in found if not name.startswith("adminui/")} == {
        "config/kernel/database.py",
        "config/kernel/postgresql/base.py",
    }
