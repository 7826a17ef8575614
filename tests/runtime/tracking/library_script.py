"""A short run with one real tracker, without a network, and a look at what its library has kept.

python -m tests.runtime.tracking.library_script NAME     (in an empty folder, which becomes the home of everything)
"""

import json
import os
import sqlite3
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from accelkit import Accelerator

CONFIG = {"rate": 0.1, "model": {"sizes": [1, 2], "dtype": torch.float16}}
IMAGE = np.zeros((8, 8, 3), dtype=np.uint8)
BEFORE_THE_END = ("aim", "wandb")
INIT: dict[str, dict[str, Any]] = {
    "comet_ml": {"online": False},
    "dvclive": {"save_dvc_exp": False},
    "swanlab": {"mode": "offline"},
    "wandb": {"mode": "offline"},
}


def wandb(run: Any) -> None:
    """Before the end: summary and configuration; the images and the table are files."""
    assert dict(run.config) == {"rate": 0.1, "model": {"sizes": [1, 2], "dtype": "torch.float16"}}, dict(run.config)
    summary = dict(run.summary)
    assert (summary["loss"], summary["note"], summary["group"]["a"]) == (0.25, "hello", 1.0), summary
    assert list(Path("wandb").rglob("*.png"))
    assert list(Path("wandb").rglob("*.table.json"))


def tensorboard(run: Any) -> None:
    """Scalars and texts are read back from the events, hyper-parameters from their file."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("logs/project").Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(0, 1.0), (1, 0.5), (2, 0.25)]
    assert "note/text_summary" in events.Tags()["tensors"]
    assert events.Tags()["images"], events.Tags()
    assert "_hparams_/session_start_info" in events.summary_metadata
    assert EventAccumulator("logs/project/group_a").Reload().Scalars("group")[0].value == 1.0
    kept = json.loads(Path("logs/project/hparams.yml").read_text())
    assert kept == {"rate": 0.1, "model/sizes": "[1, 2]", "model/dtype": "torch.float16"}


def mlflow(run: Any) -> None:
    """Parameters, the history of a metric, tags and the status, through MLflow's own client."""
    from mlflow import MlflowClient

    client = MlflowClient()
    kept = client.get_run(run.info.run_id)
    assert kept.data.params == {"rate": "0.1", "model/sizes": "[1, 2]", "model/dtype": "torch.float16"}
    assert [m.value for m in client.get_metric_history(run.info.run_id, "loss")] == [1.0, 0.5, 0.25]
    assert kept.data.metrics["group/b"] == 2.0
    assert kept.data.tags["note"] == "hello"
    assert kept.info.status == "FINISHED"
    assert client.get_experiment(kept.info.experiment_id).name == "project"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["note.txt"]


def comet_ml(run: Any) -> None:
    """The archive that would be uploaded holds metrics and parameters."""
    archive = next(Path(".cometml-runs").glob("*.zip"))
    with zipfile.ZipFile(archive) as file:
        kept = file.read("messages.json").decode()
    for text in ('"loss"', "0.25", "group_a", "hello", "rate"):
        assert text in kept, text


def aim(run: Any) -> None:
    """Before the end: parameters and the last values of a metric, as the run itself shows them."""
    from aim.storage.context import Context

    assert run["hparams", "rate"] == 0.1
    assert run["hparams", "model", "dtype"] == "torch.float16"
    assert run.name == "project"
    assert run.get_metric("loss", Context({})).values.last_value() == 0.25
    assert run.get_metric("group/a", Context({})).values.last_value() == 1.0


def clearml(run: Any) -> None:
    """The offline session holds the scalars, under chart and line."""
    kept = next(Path().rglob("offline-*/metrics.jsonl")).read_text() if list(Path().rglob("metrics.jsonl")) else ""
    zipped = "".join(
        zipfile.ZipFile(path).read("metrics.jsonl").decode() for path in Path().rglob("offline-*.zip") if not kept
    )
    for text in ('"loss"', "0.25", '"eval"', "0.125"):
        assert text in kept + zipped, text


def dvclive(run: Any) -> None:
    """Metrics and parameters lie in its files."""
    kept = json.loads(Path("dvclive/metrics.json").read_text())
    assert (kept["loss"], kept["group"]["b"]) == (0.25, 2.0), kept
    assert "rate: 0.1" in Path("dvclive/params.yaml").read_text()


def swanlab(run: Any) -> None:
    """Configuration, texts and images lie in its files."""
    assert "torch.float16" in next(Path("swanlog").rglob("config.yaml")).read_text()
    assert list(Path("swanlog").rglob("*.png"))
    assert next(Path("swanlog").rglob("*.txt")).exists()
    assert list(Path("swanlog").glob("run-*/run-*.swanlab"))


def trackio(run: Any) -> None:
    """Metrics lie in its database."""
    kept = []
    for file in Path("trackio").glob("*.db"):
        with sqlite3.connect(file) as database:
            kept += [str(row) for row in database.execute("select * from metrics")]
    assert any('"loss": 0.25' in row or '"loss":0.25' in row for row in kept), kept


def jsonl(run: Any) -> None:
    """The lines."""
    lines = [json.loads(line) for line in Path("logs/project/metrics.jsonl").read_text().splitlines()]
    assert lines[0]["config"]["model"]["dtype"] == "torch.float16"
    assert [line["values"]["loss"] for line in lines[1:4]] == [1.0, 0.5, 0.25]


def go_offline(name: str) -> None:
    """Everything below this folder, and nothing over a network."""
    home = str(Path.cwd())
    os.environ |= {"HOME": home, "TRACKIO_DIR": f"{home}/trackio"}
    os.environ |= {
        "MLFLOW_TRACKING_URI": f"file:{home}/mlflow",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }  # mlflow-skinny's only store
    os.environ |= {"CLEARML_CACHE_DIR": home, "HF_HUB_OFFLINE": "1", "WANDB_SILENT": "true"}
    if name == "clearml":
        from clearml import Task

        Task.set_offline(True)


def show_more(name: str, tracker: Any) -> None:
    """Images, tables and files, where the tracker takes them."""
    if hasattr(tracker, "log_images"):
        shown = {"tensorboard": torch.zeros(2, 3, 8, 8), "aim": (IMAGE, "caption"), "clearml": IMAGE}.get(name, [IMAGE])
        tracker.log_images({"image": shown}, step=4)
    if hasattr(tracker, "log_table"):
        tracker.log_table("table", columns=["a", "b"], data=[[1, 2], [3, 4]], step=5)
    if hasattr(tracker, "log_artifact"):
        Path("note.txt").write_text("x")
        tracker.log_artifact("note.txt")


def main(name: str) -> None:
    """Log, end, look."""
    go_offline(name)
    acc = Accelerator(log_with=name, project_dir="logs")
    acc.init_trackers("project", CONFIG, init_kwargs=INIT)
    for step in range(3):
        acc.log({"loss": torch.tensor(0.5**step), "eval_loss": 0.125, "step": step}, step=step)
    acc.log({"note": "hello", "group": {"a": 1.0, "b": 2.0}}, step=3)
    tracker = acc.get_tracker(name)
    run = acc.get_tracker(name, unwrap=True)
    show_more(name, tracker)
    look = globals()[name]
    if name in BEFORE_THE_END:
        look(run)
    acc.end_training()
    if name not in BEFORE_THE_END:
        look(run)
    print("kept")


if __name__ == "__main__":
    main(sys.argv[1])
