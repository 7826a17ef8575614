"""The wizard: only the questions that matter for the answers so far, defaults from the hardware found."""

from collections.abc import Callable, Iterator

from accelkit.contract.data import data
from accelkit.contract.options import options
from accelkit.contract.strategies import STRATEGIES, StrategyOptions
from accelkit.host.config import loading, model
from accelkit.host.config.model import RunConfig
from accelkit.host.hardware import Hardware


@data
class Question:
    """One question."""

    key: str
    text: str
    default: str


def questions(answers: dict[str, object], found: Hardware, *, engine: bool) -> Iterator[Question]:
    """What is to be asked, in order. `answers` grows between two questions; what is answered already is not asked."""
    gpus = len(found.gpus)
    yield Question(key="run.on", text="Where do ranks run: docker or local?", default="docker" if engine else "local")
    if answers["run.on"] == "docker":
        yield Question(key="run.image", text="Which image?", default="cpu")
        yield Question(key="run.memory", text="Memory limit of a container, for example 4g (empty: none)?", default="")
    yield Question(key="run.nodes", text="How many nodes?", default="1")
    if gpus and str(answers["run.nodes"]) == "1":
        yield Question(key="run.gpus", text=f"Which GPUs: all {gpus}, none, a count or a list?", default="all")
    yield Question(key="run.procs_per_node", text="How many ranks a node?", default=str(max(1, gpus)))
    if str(answers["run.nodes"]) != "1" or str(answers["run.procs_per_node"]) != "1":
        known = ", ".join(name for name in STRATEGIES if name != "single")
        yield Question(key="run.strategy", text=f"How do ranks train together: {known}?", default="auto")
        yield from _of_strategy(str(answers["run.strategy"]))
    yield Question(
        key="run.precision", text="Mixed precision: no, bf16, fp16 (empty: the script's choice)?", default=""
    )
    yield Question(
        key="run.deterministic", text="The same numbers on every run, at some cost in speed: yes or no?", default="no"
    )


def _of_strategy(strategy: str) -> Iterator[Question]:
    """The questions that the table of options has for a strategy."""
    for name, (_, described) in options(StrategyOptions).items():
        if described.question and strategy in described.strategies:
            yield Question(key=f"run.{name}", text=described.question, default=described.reply)


def ask(
    given: dict[str, object],
    found: Hardware,
    *,
    engine: bool,
    reply: Callable[[str, str], str],
    say: Callable[[str], None],
) -> dict[str, object]:
    """Ask until every answer fits; returns dotted key -> value. `reply(text, default)` asks a person."""
    answers = dict(given)
    for question in questions(answers, found, engine=engine):
        while question.key not in answers:
            text = reply(question.text, question.default).strip()
            if not text and not question.default:
                break
            value, problem = loading.value_of(question.key, text or question.default)
            if problem:
                say(problem)
            else:
                answers[question.key] = value
    return answers


def unattended(given: dict[str, object], found: Hardware, *, engine: bool) -> dict[str, object]:
    """The answers of somebody who presses Enter throughout; what equals the built-in default is left out."""
    answers = ask(given, found, engine=engine, reply=lambda _text, default: default, say=lambda _text: None)
    return {key: value for key, value in answers.items() if key in given or value != _default(key)}


def _default(key: str) -> object:
    field, _ = model.options(RunConfig)[key.partition(".")[2]]
    return field.default
