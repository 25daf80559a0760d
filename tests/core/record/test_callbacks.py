"""The callbacks, with the trainers themselves."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from torchtriage.api.straggler_watch import StragglerWatch
from torchtriage.core.errors import UsageError
from torchtriage.core.record import phase_clock
from torchtriage.core.record.phase_clock import BACKWARD, FORWARD, LOADER, OPTIMIZER, PhaseClock
from torchtriage.core.record.phase_hooks import PhaseHooks
from torchtriage.integrations.trainers import (
    AccelerateProfile,
    HFCallback,
    HFStragglerWatch,
    LightningCallback,
    LightningStragglerWatch,
    TorchTitanProfile,
)

pytestmark = [
    pytest.mark.torch,
    # the libraries' own, at import and when they train
    pytest.mark.filterwarnings("ignore"),
]
N_STEPS = 250  # on a fast machine everything is timed for a hundred steps, twice


class Data:
    """Regression to zero."""

    def __len__(self) -> int:
        return 2 * N_STEPS

    def __getitem__(self, at: int) -> dict[str, Any]:
        import torch

        return {"x": torch.full((16,), at / 100)}


def train_with_transformers(folder: Path, *callbacks: Any) -> list[float]:
    import torch
    import transformers

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 1))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layers(x).square().mean()}

    model = Model()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "hf"),
        per_device_train_batch_size=2,
        num_train_epochs=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        remove_unused_columns=False,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=Data(), callbacks=list(callbacks))
    trainer.train()
    return [float(parameter.detach().sum()) for parameter in model.parameters()]


def test_transformers_trainer(tmp_path: Path) -> None:
    import transformers

    callback = HFCallback(tmp_path / "out", steps=5)
    assert isinstance(callback, transformers.TrainerCallback)
    assert callback.report is None
    trained = train_with_transformers(tmp_path, callback)
    assert trained == train_with_transformers(tmp_path)
    assert callback.profile.recording["light"]["steps"] == 5
    assert callback.profile.recording["ended"] == "complete"
    assert callback.report.summary is not None
    assert "transformers.Trainer" in callback.report.recorded.loop


def test_a_training_may_end_when_all_is_recorded(tmp_path: Path) -> None:
    callback = HFCallback(tmp_path / "out", steps=2, warmup=0, stop=True)
    train_with_transformers(tmp_path, callback)
    recording = callback.profile.recording
    assert recording["ended"] == "complete"
    assert recording["steps_seen"] < 2 * N_STEPS


def test_a_second_training_goes_on(tmp_path: Path) -> None:
    import transformers

    callback = HFCallback(tmp_path / "out", stop=True)
    control = transformers.TrainerControl()
    callback.on_train_begin(None, None, control)
    callback.on_train_end(None, None, control)
    callback.on_train_begin(None, None, control)
    callback.on_step_end(None, None, control)
    assert callback.profile.done
    assert not control.should_training_stop


def test_a_training_that_begins_again_may_end(tmp_path: Path) -> None:
    import transformers

    callback = HFCallback(tmp_path / "out", steps=2, warmup=0, stop=True)
    control = transformers.TrainerControl()
    for _ in range(2):  # as auto_find_batch_size does when memory runs out
        callback.on_train_begin(None, None, control)
        callback.on_step_end(None, None, control)
    for _ in range(2 * N_STEPS):
        callback.on_step_end(None, None, control)
    assert callback.profile.done
    assert control.should_training_stop


@pytest.mark.parametrize("again", [False, True])
def test_a_transformers_training_that_raises_is_ended(again: bool, tmp_path: Path) -> None:
    callback = HFCallback(tmp_path / "out", steps=2, warmup=0)
    callback._start()
    while callback.profile.recorder.state != "heavy":
        callback._step()
    for _ in range(3):
        callback._step()
    if again:
        HFCallback()._start()
    assert callback.report.recorded is not None
    assert callback.profile.recording["ended"] == "the training raised"


def test_a_training_that_goes_on_is_not_ended_from_elsewhere(tmp_path: Path) -> None:
    """By another thread that asks for its report, or by a training inside of it."""
    import transformers

    outer, inner = HFCallback(tmp_path / "outer"), HFCallback(tmp_path / "inner")
    seen: list[str] = []

    def ask() -> None:
        with pytest.raises(UsageError, match="expected a block that has ended"):
            seen.append(str(outer.report))

    class Asks(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                thread = threading.Thread(target=ask)
                thread.start()
                thread.join()
                train_with_transformers(tmp_path / "b", inner)
                seen.append(outer.profile.recorder.ended)

    train_with_transformers(tmp_path / "a", outer, Asks())
    assert seen == [""]
    assert inner.profile.done


def test_a_transformers_trainer_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = Counter[int]()
    monkeypatch.setattr(phase_clock, "TIMED_NS", 0)  # every step is timed
    monkeypatch.setattr(phase_clock, "COUNTED_NS", 0)
    enter = PhaseClock.enter
    monkeypatch.setattr(PhaseClock, "enter", lambda clock, phase: (entered.update([phase]), enter(clock, phase))[1])
    monkeypatch.setattr(StragglerWatch, "_off", lambda _watch: None)  # goes on, though the job has one rank
    callback = HFStragglerWatch(every=10)
    trained = train_with_transformers(tmp_path, callback)
    assert callback.watch.summary()["steps"] == 2 * N_STEPS
    assert entered[FORWARD] == entered[OPTIMIZER] == 2 * N_STEPS
    assert N_STEPS <= entered[BACKWARD] <= 2 * N_STEPS
    assert entered[LOADER] >= 2 * N_STEPS  # and the ends of the epochs
    PhaseHooks.remove(callback.watch._hooks)
    assert trained == train_with_transformers(tmp_path)


PLAIN: dict[str, Any] = {"accelerator": "cpu", "logger": False}
PLAIN |= dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


@pytest.mark.parametrize("library", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_trainer(library: str, tmp_path: Path) -> None:
    from importlib import import_module

    import torch

    pl = import_module(library)

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 1)

        def training_step(self, batch: dict[str, torch.Tensor], at: int) -> torch.Tensor:
            return self.layer(batch["x"]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = LightningCallback(tmp_path, steps=5)
    assert isinstance(callback, pl.Callback)
    trainer = pl.Trainer(max_epochs=2, callbacks=[callback], **PLAIN)
    trainer.fit(Model(), torch.utils.data.DataLoader(Data(), batch_size=2))
    assert callback.profile.recording["light"]["steps"] == 5
    assert callback.report.summary is not None
    assert "Lightning" in callback.report.recorded.loop


def test_a_training_that_raises_leaves_what_was_recorded(tmp_path: Path) -> None:
    import lightning.pytorch as pl
    import torch

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 1)

        def training_step(self, batch: dict[str, torch.Tensor], at: int) -> torch.Tensor:
            if at == 5:
                raise ZeroDivisionError("in the middle of the light recording")
            return self.layer(batch["x"]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = LightningCallback(tmp_path, steps=3, warmup=0)
    callback._start()
    recorder = callback.profile.recorder
    recorder.plan = type(recorder.plan)(warmup=0, timing_steps=0, light=5)
    trainer = pl.Trainer(max_epochs=1, callbacks=[callback], **PLAIN)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(Model(), torch.utils.data.DataLoader(Data(), batch_size=2))
    assert callback.profile.recording["ended"] == "the training raised ZeroDivisionError"
    assert callback.profile.recording["light"]["steps"] == 3


def accelerated() -> tuple[Any, Any, Any, Any]:
    import torch
    from accelerate import Accelerator

    model = torch.nn.Linear(16, 1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = torch.utils.data.DataLoader(Data(), batch_size=2)
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6), loader)


def test_accelerate_with_its_accumulation(tmp_path: Path) -> None:
    accelerator, model, optimizer, loader = accelerated()
    n_steps = 0
    with AccelerateProfile(accelerator, tmp_path, steps=3, warmup=1) as found:
        while not found.done:
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch["x"]).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
                    n_steps += bool(accelerator.sync_gradients)
    assert found.recording["ended"] == "complete"
    assert found.recording["light"]["steps"] == 3
    assert 0 < found.recording["steps_seen"] <= n_steps
    assert found.report.recorded is not None
    assert not optimizer.optimizer._optimizer_step_post_hooks


def test_accelerate_without_an_optimizer(tmp_path: Path) -> None:
    from accelerate import Accelerator

    with pytest.raises(UsageError, match="prepare"), AccelerateProfile(Accelerator(cpu=True), tmp_path):
        pass


@dataclass(kw_only=True)
class TitanConfig:
    """What of torchtitan's configuration matters here: a field for its profiler, and a build that copies."""

    profiler: Any = None
    dump_folder: str = "./outputs"
    steps: int = 60

    def build(self) -> TitanTrainer:
        return TitanTrainer(replace(self))


class TitanTrainer:
    """Enters, steps and leaves its profiler as ``torchtitan/trainer.py`` of pytorch/torchtitan b5bcd76 does.

    torchtitan itself needs more GPUs than a test has.
    """

    def __init__(self, config: TitanConfig) -> None:
        import torch

        self.config, self.step = config, 0
        self.model = torch.nn.Linear(16, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)

    def train_step(self) -> None:
        import torch

        self.optimizer.zero_grad()
        self.model(torch.ones(4, 16)).square().mean().backward()
        self.optimizer.step()

    def train(self) -> None:
        with self.config.profiler.build(global_step=self.step, base_folder=self.config.dump_folder) as profiler:
            while self.step < self.config.steps:
                self.step += 1
                try:
                    self.train_step()
                except StopIteration:
                    break
                profiler.step()


def test_the_contract_of_torchtitan(tmp_path: Path) -> None:
    config = TitanConfig()
    config.profiler = found = TorchTitanProfile(tmp_path, steps=3, warmup=1)
    trainer = config.build()
    trainer.config.steps = N_STEPS
    trainer.train()
    assert trainer.step == N_STEPS
    assert found.recording["light"]["steps"] == 3
    assert found.recording["ended"] == "complete"
    assert 0 < found.recording["steps_seen"] <= N_STEPS
    assert "torchtitan" in found.report.recorded.loop


def test_torchtitan_that_fails_keeps_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TitanConfig(profiler=TorchTitanProfile(tmp_path))
    trainer = config.build()

    def fail() -> None:
        raise RuntimeError

    monkeypatch.setattr(trainer, "train_step", fail)
    with pytest.raises(RuntimeError):
        trainer.train()
    assert "RuntimeError" in config.profiler.recording["ended"]


@pytest.mark.parametrize("kind", [HFCallback, LightningCallback])
def test_steps_that_cannot_be_meant_are_refused_at_once(kind: Any) -> None:
    with pytest.raises(UsageError, match="expected steps"):
        kind(steps=0)


@pytest.mark.parametrize("kind", [HFCallback, LightningCallback])
def test_copies_and_pickles_begin_anew(kind: Any, tmp_path: Path) -> None:
    callback = kind(tmp_path, steps=3)
    for other in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert isinstance(other, kind)
        assert other._settings == callback._settings


@pytest.mark.parametrize("kind", [HFStragglerWatch, LightningStragglerWatch])
def test_watches_are_copied_with_their_settings(kind: Any) -> None:
    for other in (copy.deepcopy(kind(every=7)), pickle.loads(pickle.dumps(kind(every=7)))):
        assert isinstance(other, kind)
        assert other._settings == {"every": 7}


@pytest.mark.parametrize("kind", [HFStragglerWatch, LightningStragglerWatch])
def test_a_watch_that_cannot_be_meant_is_refused_when_it_is_made(kind: Any) -> None:
    with pytest.raises(UsageError, match="whole number"):
        kind(every=2)
    with pytest.raises(TypeError, match="steps"):
        kind(steps=7)


def test_importing_them_imports_no_trainer() -> None:
    code = (
        "import sys, torchtriage.integrations.trainers;"
        "bad = {'torch', 'transformers', 'lightning', 'pytorch_lightning'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
