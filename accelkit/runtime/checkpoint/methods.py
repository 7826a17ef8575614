"""What `Accelerator` does about checkpoints, as methods."""

import threading
import warnings
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.utils.hooks import RemovableHandle

from accelkit.runtime import interrupted, models
from accelkit.runtime.accumulate import Accumulation
from accelkit.runtime.checkpoint import digest, folder, loading, modelfiles, names, parts, project, shards, single
from accelkit.runtime.checkpoint.agreement import nodes, settle
from accelkit.runtime.checkpoint.background import BackgroundSaver
from accelkit.runtime.checkpoint.manifest import Manifest
from accelkit.runtime.checkpoint.project import ProjectConfiguration
from accelkit.runtime.checkpoint.saving import Job, Place, Save, begin
from accelkit.runtime.collectives.nested import NestedCollectives
from accelkit.runtime.errors import CheckpointError, SettingError
from accelkit.runtime.models import Prepared
from accelkit.runtime.processes import ProcessActions
from accelkit.runtime.strategies.base import Strategy

Verify = Literal["crc32", "size"]
_ONE_AT_A_TIME = threading.RLock()
"""Threads of a process save and load one after another: they share names of checkpoints, buffers and the exchanges of ranks."""


class CheckpointMethods(ProcessActions):
    """Saving and loading: the whole state of a run, a model, an object."""

    scaler: Any
    _strategy: Strategy
    _accumulation: Accumulation
    _models: Prepared
    _optimizers: Prepared
    _dataloaders: Prepared
    _schedulers: Prepared

    @property
    @abstractmethod
    def operations(self) -> NestedCollectives:
        """Collective operations on nested structures."""

    def _keep_checkpoints(self, project_dir: Any, config: ProjectConfiguration | None) -> None:
        """Make what saving and loading remember."""
        self.project_configuration = config or ProjectConfiguration()
        if project_dir is not None and self.project_configuration.project_dir is None:
            self.project_configuration.set_directories(str(project_dir))
        self._custom_objects: list[Any] = []
        self._save_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self._load_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self._background = BackgroundSaver(self.num_processes)

    @property
    def project_dir(self) -> str | None:
        """The project's folder."""
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | None:
        """Where trackers write."""
        return self.project_configuration.logging_dir

    @property
    def save_iteration(self) -> int:
        """The number of the next checkpoint."""
        return self.project_configuration.iteration

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Save and load these objects, too, in this order. Raises SettingError for those without state_dict and load_state_dict."""
        wrong = [f"{index} ({type(item).__name__})" for index, item in enumerate(objects) if not parts.has_state(item)]
        if wrong:
            raise SettingError(
                f"register_for_checkpointing: no state_dict and load_state_dict at {', '.join(wrong)}",
                hint="give the class both methods",
            )
        self._custom_objects.extend(objects)

    def register_save_state_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(models, weights, output_dir)` on every rank before `save_state` writes. What it takes out of `weights`, it saves.

        `output_dir` becomes the checkpoint when everything is written: files that the hook writes there are part of it.
        """
        handle = RemovableHandle(self._save_hooks)
        self._save_hooks[handle.id] = hook
        return handle

    def register_load_state_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(models, input_dir)` on every rank before `load_state` loads. What it takes out of `models`, it loads."""
        handle = RemovableHandle(self._load_hooks)
        self._load_hooks[handle.id] = hook
        return handle

    def save_state(self, output_dir: Any = None, safe_serialization: bool = True, *, asynchronous: bool = False) -> Any:
        """Save everything that is prepared or registered, the random generators of every rank, and where the loop is.

        All ranks call it. The checkpoint appears whole or not at all; an earlier one in `output_dir` is there until then, and other
        files in that folder stay. With automatic naming the name is chosen and `output_dir` must be left out. Several threads may
        call it: they save one after another.

        Args:
            output_dir: the folder of the checkpoint; default `checkpoint` in the project's folder, else in the working folder.
            safe_serialization: weights in the safetensors format; False: in torch's.
            asynchronous: copy the state (into memory that is kept for the next time), go on training, and write meanwhile.

        Returns the checkpoint's path; with `asynchronous` a `SaveHandle`. Raises CheckpointError on every
        rank when a rank could not write, SettingError for a folder that cannot be the target.
        """
        with _ONE_AT_A_TIME:
            return self._save_state(output_dir, safe_serialization, asynchronous=asynchronous)

    def _save_state(self, output_dir: Any, safe_serialization: bool, *, asynchronous: bool) -> Any:
        self.wait_for_checkpoint()
        config = self.project_configuration
        place = Place(rank=self.process_index, local_rank=self.local_process_index, each_node=config.save_on_each_node)
        save = begin(self.operations.exchange, place, lambda: _choose_target(config, output_dir))
        job = self._capture(save, place, safe_serialization, asynchronous)
        config.iteration += 1
        if asynchronous:
            return self._background.start(save, job)
        with digest.threads() as pool:
            save.run(job, self.operations.exchange, pool)
        return save.target

    def _capture(self, save: Save, place: Place, safe: bool, asynchronous: bool) -> Job:
        """What this rank writes; all ranks fail when hooks or states fail on one."""

        def capture() -> None:
            subjects, config = self._subjects(), self.project_configuration
            self._warn_of_gradients()
            weights, optimizers = shards.states(subjects, keep=place.is_maker)
            for hook in list(self._save_hooks.values()):
                hook(subjects.models, weights, str(save.path))
            held = shards.take(weights, optimizers)
            made.append(held)
            files = [parts.rank_part(subjects, self._accumulation.step)]
            if place.is_maker:
                divided = [names.shards_of_model(index) in held.folders for index in range(len(weights))]
                files += [*parts.model_parts(weights, divided, safe=safe), *parts.other_parts(subjects, optimizers)]
            manifest = Manifest(
                world_size=save.size,
                strategy=self._strategy.name,
                iteration=config.iteration,
                counts={**subjects.counts, "models": len(weights)},
            )
            ready = self._background.snapshot(files) if asynchronous else files
            jobs.append(Job(parts=ready, manifest=manifest, after=_pruning(config)))

        made: list[shards.Held] = []
        jobs: list[Job] = []
        written: list[parts.Part] = []
        exchange = self.operations.exchange
        try:
            settle(exchange, "save_state", capture)
            if any(settle(exchange, "save_state", lambda: bool(made[0].folders))):
                settle(exchange, "save_state", lambda: written.extend(made[0].write(save.path, place.rank)))
        except Exception:
            save.abandon()
            raise
        return replace(jobs[0], parts=[*jobs[0].parts, *written])

    def _warn_of_gradients(self) -> None:
        """Say that gradients of a window that is not complete are not saved: the rest of it would be all of its step after a resume."""
        state = self._accumulation.state
        done = self._accumulation.step % state.num_steps
        if done and self.is_main_process:
            warnings.warn(
                f"save_state after {done} of {state.num_steps} micro-batches of a window: their gradients are not part of the "
                "checkpoint; save when accelerator.sync_gradients is true",
                stacklevel=2,
            )

    def _subjects(self) -> parts.Subjects:
        return parts.Subjects(
            strategy=self._strategy,
            models=self._models.objects,
            optimizers=self._optimizers.objects,
            schedulers=self._schedulers.objects,
            loaders=self._dataloaders.objects,
            scaler=self.scaler,
            custom=self._custom_objects,
            device=self.device,
            rank=self.process_index,
        )

    def wait_for_checkpoint(self) -> None:
        """Return when no checkpoint is being written any more. Raises what went wrong with the last asynchronous one, once."""
        interrupted.close()
        self._background.wait()

    def load_state(
        self,
        input_dir: Any = None,
        load_kwargs: Mapping[str, Any] | None = None,
        *,
        strict: bool = True,
        map_location: Any = None,
        verify: Verify = "crc32",
    ) -> None:
        """Load what `save_state` saved into everything that is prepared and registered, in place.

        All ranks call it. Nothing is changed unless everything fits: files, digests, names, shapes and types are checked first. The
        number of ranks may differ from that of the save. A kind of object of which none is prepared is left out.

        Args:
            input_dir: the checkpoint; with automatic naming None is the one of the highest number.
            load_kwargs: for `torch.load` of everything but safetensors files; `{"weights_only": False}` runs what the files contain.
            strict: False loads models whose names of weights are not those of the checkpoint, as far as they agree.
            map_location: None, "cpu" or "on_device"; makes no difference, for everything is read into where it lives.
            verify: check every file's CRC-32, or only its size.

        Raises SettingError when there is no such folder, CheckpointError when the checkpoint is damaged, incomplete, or of something else.
        """
        if map_location not in (None, "cpu", "on_device"):
            raise TypeError(f"load_state: map_location={map_location!r}: must be None, 'cpu' or 'on_device'")
        if verify not in ("crc32", "size"):
            raise SettingError(f"load_state: verify={verify!r}: must be 'crc32' or 'size'")
        with _ONE_AT_A_TIME:
            self._load_state(input_dir, load_kwargs, strict=strict, verify=verify)

    def _load_state(
        self, input_dir: Any, load_kwargs: Mapping[str, Any] | None, *, strict: bool, verify: Verify
    ) -> None:
        self.wait_for_checkpoint()
        exchange, config = self.operations.exchange, self.project_configuration
        main = self.is_main_process
        source = settle(exchange, "load_state", lambda: _choose_source(config, input_dir) if main else None)[0]
        assert source is not None
        source = source.expanduser().absolute()
        found = self._open(source, verify)
        subjects = self._subjects()

        def run_hooks() -> loading.Load:
            for hook in list(self._load_hooks.values()):
                hook(subjects.models, str(source))
            made.append(loading.prepare(subjects, found, load_kwargs or {}, strict=strict))
            return made[0]

        made: list[loading.Load] = []
        notes = settle(exchange, f"loading {source}", lambda: run_hooks().notes)
        settle(exchange, f"loading {source}", lambda: [apply() for apply in made[0].applies] and None)
        self._accumulation.step = made[0].step
        done, steps = made[0].step % self._accumulation.state.num_steps, self._accumulation.state.num_steps
        if done:
            notes[0].append(
                f"{source} was saved after {done} of {steps} micro-batches of a window, and does not hold their gradients: the next "
                "step has those of the others only"
            )
        self._go_on(found, notes)

    def _open(self, source: Path, verify: Verify) -> folder.Opened:
        """The checkpoint, checked: the ranks of a node divide its bytes."""
        exchange, opened = self.operations.exchange, []

        def look() -> int:
            if not source.is_dir():
                raise SettingError(
                    f"load_state: tried to find {source}, but folder does not exist", hint=folder.last_complete(source)
                )
            opened.append(folder.open_checkpoint(source))
            return self.local_process_index

        owners = nodes(settle(exchange, f"opening {source}", look))
        node = [rank for rank, owner in enumerate(owners) if owner == owners[self.process_index]]
        found: folder.Opened = opened[0]
        if verify != "size":
            share = slice(node.index(self.process_index), None, len(node))
            settle(exchange, f"checking {source}", lambda: _refuse_damage(found, share))
        return found

    def _go_on(self, found: folder.Opened, notes: list[list[str]]) -> None:
        """Count on from what is there, and say what is not as it was."""
        config = self.project_configuration
        there = project.numbered(config.checkpoints) if config.automatic_checkpoint_naming else {}
        last = settle(self.operations.exchange, "load_state", lambda: max([found.manifest.iteration, *there]))
        config.iteration = max(config.iteration, last[0] + 1)
        if self.is_main_process:
            every = [note for of_rank in notes for note in of_rank]
            for note in [*loading.describe_world(found, self.num_processes), *dict.fromkeys(every)]:
                warnings.warn(note, stacklevel=3)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """The model's whole state, by the names that the model itself gives; with `unwrap=False` by those of its wrapper.

        All ranks call it. Of a sharded model rank 0 gets the state, on the CPU, and the others nothing; with `unwrap=False` every rank
        gets its parts. Tensors of a dispatched model that are on disk are views of their files: what is not looked at takes no memory.
        """
        if unwrap:
            return self._whole_state(model, keep=self.is_main_process)
        state: dict[str, Any] = model.state_dict()
        return state

    def _whole_state(self, model: nn.Module, *, keep: bool) -> dict[str, Any]:
        from accelkit.runtime.bigmodel import whole_state  # not a part of every script

        plain = models.unwrap(model, keep_torch_compile=False)
        if any(map(whole_state.has_offloaded_params, plain.modules())):
            return whole_state.get_state_dict_offloaded_model(plain)
        return self._strategy.model_state(model, keep=keep)

    def save_model(
        self,
        model: nn.Module,
        save_directory: Any,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write a model's weights for others to read, on rank 0 (with `save_on_each_node`, on the first rank of each node).

        One file `model.safetensors`, or shards of at most `max_shard_size` and `model.safetensors.index.json`; without
        `safe_serialization` `pytorch_model.bin` and so on. An earlier save in the folder is replaced, other files stay. A model
        that is offloaded to disk is written from there, never held in memory as a whole. All ranks call it.
        """
        config = self.project_configuration
        place = Place(rank=self.process_index, local_rank=self.local_process_index, each_node=config.save_on_each_node)

        def write() -> None:
            state = self._whole_state(model, keep=place.is_maker)
            if place.is_maker:
                with digest.threads() as pool:
                    modelfiles.save(
                        state,
                        Path(save_directory).expanduser(),
                        max_shard_size=max_shard_size,
                        safe=safe_serialization,
                        pool=pool,
                    )

        settle(self.operations.exchange, "save_model", write)

    def save(self, obj: Any, f: Any, safe_serialization: bool = False, *, save_on_each_node: bool = False) -> None:
        """Write an object to a path or file, on rank 0 (`save_on_each_node`: on the first rank of each node); a path whole or not at all.

        `safe_serialization` writes a dict of tensors in the safetensors format.
        """
        each_node = save_on_each_node or self.project_configuration.save_on_each_node
        if self.is_local_main_process if each_node else self.is_main_process:
            single.write(obj, f, safe_serialization=safe_serialization)


def _choose_target(config: ProjectConfiguration, output_dir: Any) -> Path:
    if config.automatic_checkpoint_naming:
        if output_dir is not None:
            raise SettingError(
                f"save_state({str(output_dir)!r}): with automatic_checkpoint_naming the name is chosen",
                hint="leave output_dir out, or automatic_checkpoint_naming",
            )
        return _whole(project.next_target(config), config)
    target = _whole(_usual(config) if output_dir is None else Path(output_dir), config)
    if target.exists() and not target.is_dir():
        raise SettingError(f"save_state: {target} is a file", hint="name a folder")
    return target


def _choose_source(config: ProjectConfiguration, input_dir: Any) -> Path:
    if input_dir is not None:
        return _whole(Path(input_dir), config)
    return _whole(project.newest(config) if config.automatic_checkpoint_naming else _usual(config), config)


def _usual(config: ProjectConfiguration) -> Path:
    """Where a checkpoint lies when nobody says where: `checkpoint` in the project's folder, else in the working folder."""
    return Path(config.project_dir or ".") / "checkpoint"


def _whole(path: Path, config: ProjectConfiguration) -> Path:
    """Rank 0's path for all ranks; where each node has files of its own, each node's path is its own, too."""
    return path if config.save_on_each_node else path.expanduser().absolute()


def _pruning(config: ProjectConfiguration) -> Callable[[], None]:
    """What is done when a checkpoint is complete: the oldest beyond the limit go. That failing is no failed save."""
    saved = config.iteration

    def prune() -> None:
        try:
            project.prune(config, saved)
        except OSError as error:
            warnings.warn(f"old checkpoints could not be removed: {error}", stacklevel=2)

    return prune if config.automatic_checkpoint_naming else lambda: None


def _refuse_damage(found: folder.Opened, share: slice) -> None:
    files = [(name, found.path(name), digests) for name, digests in found.manifest.files.items()]
    with digest.threads() as pool:
        damage = digest.find_damage(files, pool, share)
    if damage:
        raise CheckpointError(
            "\n  ".join([f"{found.folder} is damaged:", *map(str, damage[:5])]),
            hint=folder.last_complete(found.folder),
        )
