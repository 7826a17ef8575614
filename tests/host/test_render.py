"""How kit prints."""

import pytest

from accelkit.host import render


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "WANDB_API_KEY",
        "PASSWORD",
        "DB_PASSWD",
        "aws_session_token",
        "X_AUTH",
        "KEY",
    ],
)
def test_what_looks_secret_is_not_shown(name: str) -> None:
    """By the variable's name, as a mapping and as NAME=VALUE, at any depth."""
    assert render.masked({"env": {name: "hidden"}, "list": [f"{name}=hidden"]}) == {
        "env": {name: "***"},
        "list": [f"{name}=***"],
    }


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "MONKEY", "COMPASS"])
def test_what_only_sounds_secret_is_shown(name: str) -> None:
    """Whole words count."""
    assert render.masked({name: "shown", "env": [f"{name}=shown"]}) == {name: "shown", "env": [f"{name}=shown"]}


def test_logins_in_urls_are_not_shown() -> None:
    """User and token of an index, also beside another one; the rest of the address is."""
    text = "https://user:token@one/simple https://two/simple http://x@three"

    assert render.masked([text, 3, None]) == ["https://***@one/simple https://two/simple http://***@three", 3, None]


def test_a_name_keeps_its_line() -> None:
    """A name with a line break or a terminal's command in it, as a file from elsewhere may have, is written out in a table."""
    shown = render.table(("NAME", "SIZE"), [("a\nb.\x1b[31mé", 1), ("c", 2)]).splitlines()

    assert shown == ["NAME            SIZE", r"a\nb.\x1b[31mé  1", "c               2"]
