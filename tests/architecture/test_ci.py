"""The scripts in ci/ and the pipelines for users keep the promises that README and CONTRIBUTING make for them."""

import os
import subprocess

import pytest
import yaml

from tests.architecture import rules

SCRIPTS = [name for name in rules.repository_files() if name.startswith("ci/") and "." not in name]
PIPELINES = [name for name in rules.repository_files() if name.startswith("ci/pipelines/")]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_executable_and_strict(script: str) -> None:
    """Each script in ci/ can be started as it is, and stops at the first command that fails."""
    text = (rules.ROOT / script).read_text(encoding="utf-8")

    assert os.access(rules.ROOT / script, os.X_OK)
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_explains_itself(script: str) -> None:
    """`ci/NAME --help` says how it is used, and does nothing else."""
    done = subprocess.run([rules.ROOT / script, "--help"], capture_output=True, check=False, text=True, timeout=20)

    assert done.returncode == 0, done.stderr
    assert f"\n  {script}" in done.stdout


def test_continuous_integration_runs_what_people_run() -> None:
    """`.ci/run` is `ci/test` with nobody there to ask."""
    text = (rules.ROOT / ".ci/run").read_text(encoding="utf-8")

    assert os.access(rules.ROOT / ".ci/run", os.X_OK)
    assert "export CI=true\n" in text
    assert "ci/test" in text.splitlines()[-1]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_pipeline_for_users_builds_the_image_and_runs_pytest(pipeline: str) -> None:
    """Each pipeline file is valid YAML, has one job, and runs the three commands of a project that uses accelkit."""
    content = yaml.safe_load((rules.ROOT / pipeline).read_text(encoding="utf-8"))
    job = content.get("jobs", content)["cpu-containers"]
    steps = [
        *job.get("before_script", []),
        *job.get("script", []),
        *(s.get("run") for s in job.get("steps", [])),
    ]
    commands = [step for step in steps if step]

    assert commands[-3:] == ['pip install "accelkit[runtime,test]"', "kit build cpu", "pytest"]
