"""Every Python that ``torchtriage run`` starts begins here; the script sees nothing of it.

The folder of this file stands first on ``PYTHONPATH``. It takes itself off ``sys.path`` and out of
the environment that Python code reads, waits for ``torch`` to be imported, and makes room for a
``sitecustomize`` of the user's own. Standard library only: the interpreter may lack ours.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing itself would cost every interpreter some milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - runs at every start
SETTINGS = "TORCHTRIAGE_RUN"


def hide(name: str, value: str) -> None:
    """Set or drop a variable for Python code alone: children without ``env=`` still get it."""
    try:
        environ: Any = os.environ
        data, key = environ._data, environ.encodekey(name)
        if value:
            data[key] = environ.encodevalue(value)
        else:
            data.pop(key, None)
    except AttributeError:
        pass  # no CPython: the script sees one folder more


def start() -> None:
    """Begin to wait for torch, as the parent asked."""
    sys.path[:] = [path for path in sys.path if path != HERE]
    text = os.environ.get(SETTINGS)
    if not text:
        return
    import json

    settings = json.loads(text)
    # a launcher hands os.environ on to its workers, so there it must stay whole
    if settings["hide"] or "RANK" in os.environ or "LOCAL_RANK" in os.environ:
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        hide("PYTHONPATH", os.pathsep.join(path for path in paths if path != HERE))
        hide(SETTINGS, "")
    sys.meta_path.insert(0, Finder(settings))


class Finder:
    """Lets every import pass; behind that of torch the watching starts."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Keep what the parent asked for."""
        self.settings = settings

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec that torch would have without us, with a loader that tells us."""
        if name != "torch":
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = Telling(spec.loader, self)  # type: ignore[assignment]
                    return spec
        return None


class Telling:
    """Loads torch as its own loader does, and then starts to watch."""

    def __init__(self, real: Loader, finder: Finder) -> None:
        """Stand in for ``real``."""
        self.real, self.finder = real, finder

    def __getattr__(self, name: str) -> Any:
        """Answer everything else as the real loader does."""
        return getattr(self.real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the real loader."""
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run torch's module, with its own loader back in place."""
        module.__loader__ = self.real
        if module.__spec__ is not None:
            module.__spec__.loader = self.real
        self.real.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        watch(self.finder.settings)


def watch(settings: dict[str, Any]) -> None:
    """Start watching; whatever goes wrong there is written down and not the script's problem."""
    try:
        if "torchtriage" not in sys.modules:
            import importlib.util

            package = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))  # noqa: PTH120
            spec = importlib.util.spec_from_file_location(
                "torchtriage",
                os.path.join(package, "__init__.py"),  # noqa: PTH118
                submodule_search_locations=[package],
            )
            assert spec is not None
            assert spec.loader is not None
            sys.modules["torchtriage"] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        from torchtriage.core.record.loop_finder import start_watching

        start_watching(settings, leak_watch)
    except Exception:
        import contextlib
        import traceback

        name = os.path.join(settings["out"], "errors-%d.txt" % os.getpid())  # noqa: PTH118, UP031
        # a full disk, or a folder that the script has removed: nowhere to say it
        with contextlib.suppress(OSError), open(name, "a") as file:  # noqa: PTH123
            traceback.print_exc(file=file)


def leak_watch(folder: Path) -> Any:
    """Return a watch for leaks that writes into ``folder``; needs numpy, which torch does without."""
    from torchtriage.memory.leaks.run_watch import LeakWatch

    return LeakWatch(folder)


def chain() -> None:
    """Import the ``sitecustomize`` that this one hides, or end as if there were none."""
    import importlib

    mine = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if mine is not None and "sitecustomize" not in sys.modules:
            sys.modules["sitecustomize"] = mine  # the import that runs us looks for it
        raise error from None


start()
chain()
