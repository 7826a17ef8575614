"""The text forms of settings."""

import pytest

from accelkit.host.config import syntax


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("1k", 1024), ("1KB", 1000), ("1KiB", 1024), ("4g", 4 << 30), ("1.5m", 3 << 19), ("2 GB", 2 * 10**9)],
)
def test_sizes_tell_kb_from_kib(text: str, size: int) -> None:
    """K and KiB are 1024, KB is 1000."""
    assert syntax.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "g", "-1g", "0", "64MiBGiB", "1 x", "1e3"])
def test_a_bad_size_is_quoted(text: str) -> None:
    """The message holds what was typed."""
    with pytest.raises(ValueError, match="is not a size"):
        syntax.parse_size(text)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("4h", 14400), ("1h30m", 5400), ("7", 7)])
def test_durations(text: str, seconds: float) -> None:
    """Hours, minutes and seconds, together too."""
    assert syntax.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "5x", "m", "1m1h"])
def test_a_bad_duration_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match="is not a duration"):
        syntax.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("all", "all"), ("none", 0), ("2", 2), ("0,2", ("0", "2")), ("0,", ("0",)), ("GPU-a1,", ("GPU-a1",))],
)
def test_gpus(text: str, gpus: object) -> None:
    """A number is a count; a list has a comma."""
    assert syntax.parse_gpus(text) == gpus


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("a", ("a", None, True)),
        ("a:rw", ("a", None, False)),
        ("a:/b", ("a", "/b", True)),
        ("a:/b:rw", ("a", "/b", False)),
    ],
)
def test_mounts_are_read_only_unless_said(text: str, mount: object) -> None:
    """The target defaults to the same place."""
    assert syntax.parse_mount(text) == mount


def test_limits() -> None:
    """The hard limit defaults to the soft one; a soft limit above it is refused."""
    assert syntax.parse_ulimit("nofile=10:20") == ("nofile", 10, 20)
    assert syntax.parse_ulimit("memlock=unlimited") == ("memlock", -1, -1)
    with pytest.raises(ValueError, match="above the hard"):
        syntax.parse_ulimit("nofile=20:10")
