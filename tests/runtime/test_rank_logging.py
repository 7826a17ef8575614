"""Logging of one rank, before and after an `Accelerator` exists."""

import logging
from collections.abc import Iterator

import pytest

from accelkit import Accelerator, AcceleratorState, SettingError, UnsupportedError, get_logger
from accelkit.runtime import rank_logging


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No state of another test, nothing said yet, the root's level as it was."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", rank_logging.LEVEL_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    rank_logging._said.clear()
    level = logging.root.level
    yield
    logging.root.setLevel(level)
    AcceleratorState._reset_state(reset_partial_state=True)


def pretend_rank_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a launcher tells the second of two ranks."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")


def test_messages_name_rank_file_and_line(caplog: pytest.LogCaptureFixture) -> None:
    """The rank stands before the message; file, line and function are those of the call, by every method."""
    logger = get_logger("tools.lines", "DEBUG")
    Accelerator()
    calls = [
        lambda: logger.debug("%s %d", "a", 1),
        lambda: logger.info("b"),
        lambda: logger.warning("c", main_process_only=False),
        lambda: logger.error("d", in_order=True),
        lambda: logger.log(logging.CRITICAL, "e"),
        lambda: logger.warning_once("f"),
        lambda: logger.critical("g"),
    ]
    for call in calls:
        call()

    assert [record.getMessage() for record in caplog.records] == [
        f"[RANK 0] {text}" for text in ("a 1", "b", "c", "d", "e", "f", "g")
    ]
    assert [record.lineno for record in caplog.records] == [call.__code__.co_firstlineno for call in calls]
    assert {record.pathname for record in caplog.records} == {__file__}
    assert {record.funcName for record in caplog.records} == {"<lambda>"}


def test_what_callers_add_stays(caplog: pytest.LogCaptureFixture) -> None:
    """`extra` reaches the record, `stacklevel` names a caller further up."""

    def helper() -> None:
        get_logger("tools.extra").warning("x", extra={"step": 3}, stacklevel=2)

    helper()
    assert caplog.records[0].__dict__["step"] == 3
    assert caplog.records[0].funcName == "test_what_callers_add_stays"


def test_before_there_is_an_accelerator(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank is the launcher's: rank 1 is quiet unless all speak, and cannot wait for its turn yet."""
    logger = get_logger("tools.early")
    logger.warning("alone")
    logger.warning("alone in order", in_order=True)
    pretend_rank_1(monkeypatch)
    logger.warning("never")
    logger.warning("all", main_process_only=False)

    assert [record.getMessage() for record in caplog.records] == [
        "[RANK 0] alone",
        "[RANK 0] alone in order",
        "[RANK 1] all",
    ]
    with pytest.raises(UnsupportedError, match="there is no Accelerator yet"):
        logger.warning("in order", in_order=True)


def test_once(caplog: pytest.LogCaptureFixture) -> None:
    """Once per logger and message, however many adapters there are; arguments count, and need not be hashable."""
    for _ in range(3):
        get_logger("tools.once").warning_once("a %s", [1])
        get_logger("tools.once").warning_once("a %s", [2])
        get_logger("tools.other").warning_once("a %s", [1])

    assert [record.getMessage() for record in caplog.records] == ["[RANK 0] a [1]", "[RANK 0] a [2]", "[RANK 0] a [1]"]


def test_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument, else the variable, else the level stays; a level that there is not is refused."""
    before = logging.getLogger("tools.level").level
    get_logger("tools.level")
    assert logging.getLogger("tools.level").level == before
    monkeypatch.setenv(rank_logging.LEVEL_VARIABLE, "info")
    assert get_logger("tools.level").logger.level == logging.INFO
    assert logging.root.level == logging.INFO
    assert get_logger("tools.level", logging.ERROR).logger.level == logging.ERROR
    with pytest.raises(SettingError, match="log level 'loud' is not known"):
        get_logger("tools.level", "loud")
