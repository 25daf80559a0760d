"""Callbacks for the trainers of Hugging Face and Lightning, and profiles of loops under accelerate and torchtitan.

They record, or watch for a rank that makes the others wait (:class:`torchtriage.StragglerWatch`).

>>> from torchtriage.integrations.trainers import HFCallback
>>> callback = HFCallback()
>>> Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()
>>> print(callback.report)

None of these libraries is imported before a callback is made.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from torchtriage.api.profile import Profile, need_torch, plan_of, profile
from torchtriage.api.straggler_watch import StragglerWatch
from torchtriage.api.traces import Report
from torchtriage.core.errors import MissingExtraError, UsageError


class _OfTrainer:
    """A callback of the trainer's own class."""

    trainers: Sequence[tuple[str, str]]
    """Module and class of the callbacks it may have to be."""
    _settings: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return one that is also a callback of the trainers that are imported."""
        del args, kwargs
        need_torch(cls.__name__)
        bases = _bases(cls.__name__, cls.trainers)
        return object.__new__(type(cls.__name__, (cls, *bases), {"__module__": cls.__module__}))

    def __reduce__(self) -> Any:
        # the class is made anew, where it is copied or sent to
        plain = next(item for item in type(self).__mro__ if item.__dict__.get("trainers"))
        return _again, (plain, self._settings)

    def _start(self, model: Any = None) -> None:
        raise NotImplementedError

    def _step(self) -> bool:
        """Return whether the training is to end."""
        raise NotImplementedError

    def _stop(self, reason: str) -> None:
        raise NotImplementedError


class _OfTransformers(_OfTrainer):
    """What a ``transformers.Trainer`` calls; a step is an optimizer step, with its accumulation."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Begin."""
        self._start(model)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Say that a step has ended."""
        if self._step():
            control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End."""
        self._stop("the training ended")


class _OfLightning(_OfTrainer):
    """What a ``Trainer`` of ``lightning`` or ``pytorch_lightning`` calls; a step is a batch."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Begin."""
        self._start(getattr(trainer.strategy, "model", None) or module)

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        """Say that a step has ended."""
        if self._step():
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """End."""
        self._stop("the training ended")

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """End; what was recorded stays."""
        self._stop(f"the training raised {type(exception).__name__}")


class _Callback(_OfTrainer):
    """A profile that a trainer starts, steps and stops."""

    boundary: str

    def __init__(
        self, out: str | os.PathLike[str] | None = None, *, steps: int = 6, warmup: int = 5, stop: bool = False
    ) -> None:
        super().__init__()
        plan_of(steps, warmup)  # an error comes here, before there is a training
        self._settings = {"out": out, "steps": steps, "warmup": warmup, "stop": stop}
        self._profile: Profile | None = None
        self._may_end = False
        self._thread = 0
        self._call: tuple[int, CodeType] | None = None

    @property
    def profile(self) -> Profile | None:
        """The recorded training, once it has begun: see :func:`torchtriage.profile`."""
        return self._profile

    @property
    def report(self) -> Report | None:
        """The judged recordings, None before a training.

        Asked for outside of the training, in its thread, it ends the recording of one that raised.
        """
        if self._profile is None:
            return None
        if not self._trains():
            self._stop(_RAISED)
        return self._profile.report

    def _trains(self) -> bool:
        """Whether the training goes on, as far as this thread can see: its call is still there."""
        return get_ident() != self._thread or any(_key(frame) == self._call for frame in _frames(sys._getframe(1)))

    def _start(self, model: Any = None) -> None:
        # of a training that begins again, with a smaller batch, too; of none after the recording
        self._may_end = self._settings["stop"] and not (self._profile is not None and self._profile.done)
        if self._profile is not None:
            return  # a second fit goes on in the first one's recording, or is not recorded
        for other in list(_begun):
            if not other._trains():
                other._stop(_RAISED)
        run = profile(self._settings["out"], steps=self._settings["steps"], warmup=self._settings["warmup"])
        run.how = self.boundary
        run.start(sys._getframe(1))
        self._profile, self._thread, self._call = run, get_ident(), None
        # the innermost call from elsewhere into the library: of a training inside of another its own
        libraries = {name.partition(".")[0] for name, _ in self.trainers}
        for frame in _frames(sys._getframe(2)):
            if frame.f_globals.get("__name__", "").partition(".")[0] not in libraries:
                break
            self._call = _key(frame)
        _begun.add(self)

    def _step(self) -> bool:
        if self._profile is None:
            return False
        self._profile.step()
        return self._may_end and self._profile.done

    def _stop(self, reason: str) -> None:
        if self._profile is not None:
            self._profile.stop(reason)
            _begun.discard(self)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _key(frame: FrameType) -> tuple[int, CodeType]:
    """Return what tells a call from others; a frame that is held would keep all that it holds."""
    return id(frame), frame.f_code


_RAISED = "the training raised"  # transformers tells its callbacks nothing of that
_begun: weakref.WeakSet[_Callback] = weakref.WeakSet()


class HFCallback(_OfTransformers, _Callback):
    """Records a ``transformers.Trainer``; a step is an optimizer step, with its accumulation.

    ``out steps warmup`` : as for :func:`torchtriage.profile`. ``stop`` : end the training that is
    recorded when everything is, and none after it.

    Raises MissingExtraError where torch or transformers is not installed.
    """

    trainers = (("transformers", "TrainerCallback"),)
    boundary = "each optimizer step of transformers.Trainer"


class LightningCallback(_OfLightning, _Callback):
    """Records a ``Trainer`` of ``lightning`` or ``pytorch_lightning``; a step is a batch.

    ``out steps warmup stop`` : as for :class:`HFCallback`. Raises MissingExtraError where torch or Lightning is
    not installed.
    """

    trainers = (("lightning.pytorch", "Callback"), ("pytorch_lightning", "Callback"))
    boundary = "each training batch of Lightning's Trainer"


class _Watch(_OfTrainer):
    """A straggler watch that a trainer starts, steps and stops; of each training its own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._settings = settings
        StragglerWatch(**settings)  # what cannot be meant is refused here, not when a training begins
        self.watch: StragglerWatch | None = None
        """Of the training that is under way, or was the last."""

    def _start(self, model: Any = None) -> None:
        self._stop("another training begins")
        self.watch = StragglerWatch(*[model] * (model is not None), **self._settings).start()

    def _step(self) -> bool:
        if self.watch is not None:
            self.watch.step()
        return False

    def _stop(self, reason: str) -> None:
        if self.watch is not None:
            self.watch.stop()


class HFStragglerWatch(_OfTransformers, _Watch):
    """Watches a ``transformers.Trainer`` for a rank that makes the others wait; a step is an optimizer step.

    ``every on_late arm out`` : as for :class:`torchtriage.StragglerWatch`. Raises MissingExtraError where torch or
    transformers is not installed.
    """

    trainers = HFCallback.trainers


class LightningStragglerWatch(_OfLightning, _Watch):
    """Watches a ``Trainer`` of ``lightning`` or ``pytorch_lightning`` for a rank that makes the others wait.

    A step is a batch. ``every on_late arm out`` : as for :class:`torchtriage.StragglerWatch`. Raises MissingExtraError
    where torch or Lightning is not installed.
    """

    trainers = LightningCallback.trainers


class AccelerateProfile(Profile):
    """Records the loop of an ``accelerate.Accelerator`` in its block; a step is an optimizer step.

    Batches that are accumulated belong to it.

    >>> with AccelerateProfile(accelerator) as p:
    ...     for batch in loader:
    ...         with accelerator.accumulate(model):
    ...             train_step(batch)
    >>> print(p.report)

    ``out steps warmup`` : as for :func:`torchtriage.profile`.
    """

    def __init__(
        self, accelerator: Any, out: str | os.PathLike[str] | None = None, *, steps: int = 6, warmup: int = 5
    ) -> None:
        super().__init__(out, plan_of(steps, warmup))
        self.how = "each optimizer step of accelerate"
        self._accelerator = accelerator
        self._hook: Any = None

    def start(self, caller: FrameType | None = None) -> None:
        """Begin; the optimizer that was prepared first says when a step ends.

        Raises UsageError: no optimizer was prepared.
        """
        optimizers = self._accelerator._optimizers
        if not optimizers:
            raise UsageError(
                "expected an optimizer that accelerator.prepare() has seen, found none",
                hint="prepare it before the block; a loop without one is recorded by tt.profile() and its step()",
            )
        super().start(caller or sys._getframe(1))
        self._hook = optimizers[0].optimizer.register_step_post_hook(lambda *_: self.step())

    def stop(self, reason: str = "stopped") -> None:
        """End; what is half recorded is kept up to its last whole step."""
        if self._hook is not None:
            self._hook.remove()
        super().stop(reason)


class TorchTitanProfile(Profile):
    """Records a ``Trainer`` of torchtitan in the place of the trainer's own profiler; a step is a training step.

    >>> config = ConfigManager().parse_args()
    >>> config.profiler = p = TorchTitanProfile()
    >>> config.build().train()
    >>> print(p.report)

    ``out steps warmup`` : as for :func:`torchtriage.profile`.
    """

    def __init__(self, out: str | os.PathLike[str] | None = None, *, steps: int = 6, warmup: int = 5) -> None:
        super().__init__(out, plan_of(steps, warmup))
        self.how = "each training step of torchtitan's Trainer"

    def build(self, **runtime: Any) -> TorchTitanProfile:
        """Return what the trainer enters, and steps behind each training step, as its configuration's ``build`` does.

        ``runtime`` : the step it goes on from, and its folder.
        """
        del runtime
        return self


def _bases(who: str, trainers: Sequence[tuple[str, str]]) -> list[type]:
    imported = [getattr(sys.modules[name], kind) for name, kind in trainers if name in sys.modules]
    if imported:
        return imported
    for name, kind in trainers:
        if find_spec(name.partition(".")[0]):
            return [getattr(import_module(name), kind)]
    library = trainers[0][0].partition(".")[0]
    raise MissingExtraError(f"{who} needs {library}", hint=f"pip install {library}")


def _again(kind: type[_OfTrainer], settings: dict[str, Any]) -> Any:
    return kind(**settings)
