"""The entry point of a node: starts its ranks, relays what they print, and ends them all when one fails.

    python3 kit_boot.py SPEC --node N        SPEC "-": the first line of standard input says where it lies

Imports no torch. Exit code: that of the node's first failing rank (128 + n for signal n), 128 + n when a signal stopped the node, else 0.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from accelkit.contract import codec, names
from accelkit.contract.packages import installed
from accelkit.contract.results import NodeReport
from accelkit.contract.spec import LaunchSpec
from accelkit.runtime import boot_env
from accelkit.runtime.boot_ranks import Ranks
from accelkit.runtime.boot_relay import leave, say


def main(argv: Sequence[str] | None = None) -> None:
    """Run the node and exit."""
    path, node = _arguments(sys.argv[1:] if argv is None else argv)
    if path == "-":
        path = os.fsdecode(sys.stdin.buffer.readline()).rstrip("\n")
    if not path:
        sys.exit(0)  # whoever started us has changed its mind
    code = Node(codec.read(LaunchSpec, path), node).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is written; taking the interpreter apart would only keep the run waiting


def _arguments(argv: Sequence[str]) -> tuple[str, int]:
    """Path of the spec, rank of the node. `argparse` would take a sixth of the time until the ranks start."""
    try:
        path, option, node = argv
        if option == "--node":
            return path, int(node)
    except ValueError:
        pass
    say(2, b"usage: kit_boot.py SPEC --node N\n")
    sys.exit(2)


class Node:
    """One node's life."""

    def __init__(self, spec: LaunchSpec, index: int) -> None:
        """`index`: rank of the node, from 0."""
        self._spec = spec
        self._index = index
        self._report_path = Path(spec.exchange_dir) / names.node_file(index)

    def run(self) -> int:
        """Start the ranks, wait for their end, and return the node's exit code."""
        usable = boot_env.cores()
        threads = boot_env.threads_of(self._spec, usable)
        interface, address = self._join()
        report = NodeReport(
            node=self._index,
            state="started",
            hostname=os.uname().nodename,
            pid=os.getpid(),
            python=".".join(map(str, sys.version_info[:3])),
            cores=usable,
            threads=threads,
            interface=interface,
            address=address,
            memory_limit=boot_env.memory_limit(),
            shm_size=boot_env.shm_size(),
            started_at=time.time(),
        )
        self._write(report)
        ranks = Ranks(self._spec, self._index)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores it
                signal.signal(number, lambda n, _frame: ranks.deliver(n))
        if self._spec.interactive:
            signal.signal(signal.SIGINT, lambda *_: None)  # the terminal's Ctrl-C is rank 0's own affair
        ranks.start(lambda local: boot_env.rank_environment(self._spec, self._index, local, threads, interface))
        report = replace(report, state="running", packages=installed())
        self._write(report)
        code = ranks.wait()
        self._write(replace(report, state="ended", ended_at=time.time(), exit_code=code))
        return code

    def _join(self) -> tuple[str | None, str | None]:
        """Interface and address towards node 0; nothing with one node."""
        if self._spec.nodes == 1:
            return None, None
        try:
            return boot_env.route_to(self._spec.master_addr, self._spec.master_port, self._spec.join_timeout)
        except boot_env.JoinError as error:
            say(2, f"[{names.node_name(self._index)}] {error}\n".encode())
            sys.exit(names.EXIT_KIT)

    def _write(self, report: NodeReport) -> None:
        leave(self._report_path, report)
