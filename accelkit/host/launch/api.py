"""Launching, strung together: record a prepared run, supervise it to its end, write down what became of it.

    request.prepare -> api.record_run -> api.supervise_run        (api.run does all three)

`supervise_run` needs nothing but the record, so that a detached supervisor starts there.
"""

import dataclasses
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final

import accelkit
from accelkit.contract import codec, names
from accelkit.host import process, render
from accelkit.host.errors import KitError, UsageError
from accelkit.host.launch import environment, folders, outcome, secrets
from accelkit.host.launch.backends import base
from accelkit.host.launch.backends.local import LocalBackend
from accelkit.host.launch.events import NodeExited
from accelkit.host.launch.request import Prepared, Request, prepare
from accelkit.host.launch.screen import Screen
from accelkit.host.launch.signals import Guard
from accelkit.host.launch.supervise import Supervisor
from accelkit.host.runs import capture, liveness, results
from accelkit.host.runs.record import CodeState, FileDigest, Outcome, OutcomeState, Record, RootCause
from accelkit.host.runs.store import EXCHANGE_FOLDER, Store

DETACHED_LOG: Final = "kit.log"
"""File of the run's folder that a detached supervisor writes what it would print."""

SUPERVISOR_PATIENCE: Final = 60.0
"""Seconds that a detached supervisor gets to start."""


def run(request: Request, screen: Screen, guard: Guard) -> Record:
    """Run to the end. Raises KitError for what cannot be started; a run that failed is no error: see the record's outcome."""
    prepared = prepare(request)
    try:
        record = record_run(prepared)
        backend = LocalBackend(prepared.plan, request.early) if request.early else None
        return supervise_run(prepared.store, record, screen, guard, backend)
    finally:
        release(prepared)


def run_interactive(request: Request, guard: Guard) -> Record:
    """Run node 0 with our own terminal on rank 0 (a debugger, a prompt). Raises UsageError for several nodes."""
    if request.config.nodes > 1:
        raise UsageError(f"--interactive with --nodes {request.config.nodes}: one terminal serves one node")
    prepared = prepare(request)
    backend = base.make(prepared.plan)
    started_at = time.time()
    try:
        record = record_run(prepared)
        guard.redirect(lambda _number: None)
        code, told = backend.interactive()
    finally:
        _clean(backend, prepared.plan.run_id)
        guard.redirect(None)
        release(prepared)
    state: OutcomeState = told or ("failed" if code else "ok")
    return _write_down(prepared.store, ended(record, [NodeExited(0, code)], state, started_at))


def shell(request: Request, command: list[str], guard: Guard) -> int:
    """`command` in a container as node 0 would get it, with our own terminal; nothing of it is recorded. Returns its exit code."""
    from accelkit.host.launch.backends.docker import DockerBackend  # the SDK: only where it is needed

    prepared = prepare(request)
    run_dir = prepared.store.prepare(prepared.plan.run_id)
    backend = DockerBackend(prepared.plan)
    try:
        _lay_out(prepared, run_dir)
        guard.redirect(lambda _number: None)
        return backend.shell(command)[0]
    finally:
        _clean(backend, prepared.plan.run_id)
        shutil.rmtree(run_dir, ignore_errors=True)
        guard.redirect(None)


def release(prepared: Prepared) -> None:
    """Give back what `prepare` reserved."""
    if prepared.reservation is not None:
        prepared.reservation.close()


def record_run(prepared: Prepared) -> Record:
    """Write the run's folder: record, launch spec, artefacts, secrets. From here on it can be found, supervised, cleaned."""
    request, plan = prepared.request, prepared.plan
    inputs = capture.digest_inputs(request.workdir, request.config.inputs)
    run_dir = prepared.store.prepare(plan.run_id)
    try:
        record = _record(prepared, _code(prepared, run_dir), inputs)
        _lay_out(prepared, run_dir)
        prepared.store.create(record)
    except BaseException:  # nothing was started: nothing of it stays
        secrets.remove(plan.run_id)
        shutil.rmtree(run_dir, ignore_errors=True)
        raise
    return record


def _record(prepared: Prepared, code: CodeState, inputs: dict[str, FileDigest]) -> Record:
    request, plan = prepared.request, prepared.plan
    return Record(
        run_id=plan.run_id,
        created_at=time.time(),
        command=request.command,
        config=dict(request.values),
        plan=plan,
        code=code,
        environment=plan.spec.env,
        secrets=secrets.names_of(request.config.secret),
        seeds={} if plan.spec.settings.seed is None else {"seed": plan.spec.settings.seed},
        hardware=codec.to_dict(prepared.hardware),
        packages={"accelkit": accelkit.__version__, "python": sys.version.split()[0]},
        inputs=inputs,
        reproduces=request.reproduces,
        supervisor=liveness.this_process(),
    )


def _code(prepared: Prepared, run_dir: Path) -> CodeState:
    """The code that will run: captured, or for a reproduced run the recorded one, whose files are copied along."""
    request = prepared.request
    if not request.records_code:
        return CodeState(kind="copy", root=str(request.workdir), complete=False)
    if request.code is None or request.reproduces is None:
        code = capture.capture_code(request.workdir, run_dir, exclude=request.config.outputs)
        for warning in code.warnings:
            render.warn(warning)
        return code
    for stored in (request.code.diff, request.code.manifest):
        if stored is not None:
            shutil.copyfile(prepared.store.run_dir(request.reproduces) / stored.name, run_dir / stored.name)
    return request.code


def _lay_out(prepared: Prepared, run_dir: Path) -> None:
    plan, config = prepared.plan, prepared.request.config
    uid = int(plan.container.user.split(":")[0]) if plan.container else os.getuid()
    codec.write(run_dir / EXCHANGE_FOLDER / names.SPEC_FILE, plan.spec)
    for name, text in base.make(plan).artefacts().items():
        codec.write_text(run_dir / name, text)
    folders.make(plan)
    secrets.lay_out(plan.run_id, config.secret, environment.current(), uid)


def supervise_run(
    store: Store, record: Record, screen: Screen, guard: Guard, backend: base.Backend | None = None
) -> Record:
    """Start the recorded plan, watch it to its end, clean up, and return the record with its outcome.

    `backend`: instead of the one that the plan names.
    """
    plan = record.plan
    backend = backend or base.make(plan)
    supervisor = Supervisor(backend, len(plan.nodes), screen, timeout=plan.timeout)
    record = dataclasses.replace(record, state="running", supervisor=liveness.this_process())
    guard.redirect(supervisor.deliver)
    started_at = time.time()
    try:
        store.update(record)
        supervisor.run()
    finally:
        guard.redirect(lambda _number: None)
        _clean(backend, plan.run_id)
        guard.redirect(None)
    over = _write_down(store, finish(record, supervisor, started_at))
    if supervisor.error is not None and supervisor.signal is None:
        raise supervisor.error
    return over


def _write_down(store: Store, record: Record) -> Record:
    """Write a run's end into its record, and then what it left, which may take a while to read. Returns the whole record."""
    has_left = results.are_there(record)
    if has_left:
        store.update(record)
        record = results.add(record)
    store.update(record)
    return record


def _clean(backend: base.Backend, run_id: str) -> None:
    try:
        backend.clean()
    except KitError as error:
        render.warn(f"could not clean up: {error.message}; later: kit runs clean {run_id}")
    secrets.remove(run_id)


def finish(record: Record, supervisor: Supervisor, started_at: float) -> Record:
    """The record of a supervised run that has ended."""
    over = ended(record, supervisor.exits, supervisor.state, started_at)
    if over.outcome is None:
        return over
    if supervisor.state == "timeout" and outcome.failed_before(over.outcome, started_at + (record.plan.timeout or 0.0)):
        return dataclasses.replace(over, outcome=dataclasses.replace(over.outcome, state="failed"))
    root = over.outcome.root_cause
    if supervisor.error is not None:
        root = RootCause(rank=None, node=None, cause="kit-error", message=supervisor.error.message)
    elif supervisor.signal is not None:
        root = None
    elif supervisor.state == "timeout":
        root = RootCause(
            rank=None, node=None, cause="timeout", message=f"stopped after --timeout, {record.plan.timeout:g} s"
        )
    code = _exit_code(supervisor, over.outcome.exit_code)
    return dataclasses.replace(over, outcome=dataclasses.replace(over.outcome, exit_code=code, root_cause=root))


def ended(record: Record, exits: list[NodeExited], state: OutcomeState, started_at: float) -> Record:
    """The record with its outcome."""
    plan = record.plan
    ranks, nodes, problems = outcome.collect(plan)
    root = outcome.root_cause(plan, ranks, exits)
    if problems and root is None:
        root = RootCause(rank=None, node=None, cause="kit-error", message=problems[0])
    return dataclasses.replace(
        record,
        state="ended",
        outcome=Outcome(
            exit_code=outcome.exit_code(root, ranks, exits),
            state=state,
            started_at=started_at,
            ended_at=time.time(),
            root_cause=root,
            ranks=ranks,
            nodes=nodes,
        ),
    )


def _exit_code(supervisor: Supervisor, of_ranks: int) -> int:
    if supervisor.signal is not None:
        return 128 + supervisor.signal
    special = {"timeout": names.EXIT_TIMEOUT, "kit-error": names.EXIT_KIT}
    return special.get(supervisor.state, of_ranks)


def detach(prepared: Prepared) -> Record:
    """Record the run and leave it to a supervisor in a session of its own, which outlives this process and its terminal."""
    record = record_run(prepared)
    run_dir = Path(record.plan.run_dir)
    reservation = prepared.reservation
    keep = (reservation.fileno(),) if reservation else ()
    words = [sys.executable, "-m", "accelkit.host.launch.detached", str(run_dir)]
    with (run_dir / DETACHED_LOG).open("ab") as log:
        # In the run's own folder, where no file of the user's can be taken for a module.
        child = process.Child(words, cwd=run_dir, stdout=log, stderr=log, keep=keep)
    try:
        _await_supervisor(prepared.store, record.run_id, child)
    except BaseException:  # Ctrl-C too: nobody was told of this run, so nobody would end it
        _end_detached(prepared.store, record.run_id, child)
        raise
    return record


def _end_detached(store: Store, run_id: str, child: process.Child) -> None:
    from accelkit.host.launch import stopping  # the SDK: only where it is needed

    child.signal(signal.SIGTERM)
    if child.wait(stopping.PATIENCE) is None:
        child.kill_group()
        child.wait()
    stopping.stop(store, dataclasses.replace(store.load(run_id), supervisor=None))


def _await_supervisor(store: Store, run_id: str, child: process.Child) -> None:
    """Until the supervisor has put its name into the record, so that whoever looks next sees a run that lives. Raises KitError."""
    deadline = time.monotonic() + SUPERVISOR_PATIENCE
    while store.load(run_id).state == "planned":
        if child.poll() is not None or time.monotonic() > deadline:
            log = store.run_dir(run_id) / DETACHED_LOG
            said = log.read_text(errors="replace").strip().splitlines()
            raise KitError(
                f"the supervisor of run {run_id} did not start: {said[-1] if said else 'it said nothing'}",
                hint=str(log),
            )
        time.sleep(0.02)
