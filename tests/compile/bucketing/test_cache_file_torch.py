"""What one process compiled, the next one finds."""

from __future__ import annotations

import _ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchtriage.compile.bucketing.planning import BucketPlan

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

torch: Any = pytest.importorskip("torch")

KEY = "ctest5library"
NAME = f"CppCodeCache/{KEY}.main.so"


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Yield an empty folder that is torch's cache; what is said to be compiled is forgotten."""
    from torch._inductor.codecache import CppCodeCache

    folder = tmp_path / "caches"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    known = dict(CppCodeCache.cache)
    yield folder
    CppCodeCache.cache.clear()
    CppCodeCache.cache.update(known)


def test_libraries_are_put_where_torch_looks_for_them(caches: Path) -> None:
    from torch._inductor.codecache import CppCodeCache

    from torchtriage.compile.bucketing import libraries

    assert NAME not in libraries.compiled()
    data = Path(_ctypes.__file__).read_bytes()
    odd = ("Other/cother.main.so", "CppCodeCache/../../up.so", "CppCodeCache/ctext.txt", "x")
    libraries.restore({NAME: data, **dict.fromkeys(odd, b"x")})
    placed = caches / KEY[1:3] / f"{KEY}.main.so"
    assert [one for one in caches.rglob("*") if one.is_file()] == [placed]
    assert placed.read_bytes() == data
    assert CppCodeCache.cache[KEY]().key == KEY
    assert libraries.compiled()[NAME] == placed


def test_what_torch_tries_the_processor_with_is_kept_too(caches: Path) -> None:
    from torch._inductor.codecache import CppCodeCache
    from torch._inductor.cpu_vec_isa import VecISA

    from torchtriage.compile.bucketing import libraries

    for name, text in (("ccheck", VecISA._avx_code), ("cother", "int other;")):
        (caches / name[1:3]).mkdir(parents=True)
        (caches / name[1:3] / f"{name}.cpp").write_text(text)
        (caches / name[1:3] / f"{name}.so").write_bytes(b"library")
    CppCodeCache.cache[KEY] = lambda: None
    (caches / KEY[1:3]).mkdir()
    (caches / KEY[1:3] / f"{KEY}.main.so").write_bytes(b"kernel")
    mine = {name: path for name, path in libraries.compiled().items() if caches in path.parents}
    assert set(mine) == {NAME, "VecISA/ccheck.so"}
    shutil.rmtree(caches / "ch")
    libraries.restore({"VecISA/ccheck.so": b"library"})
    assert (caches / "ch" / "ccheck.so").read_bytes() == b"library"
    assert "ccheck" not in CppCodeCache.cache


def test_libraries_of_another_processor_are_left(caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtriage.compile.bucketing import cache_file, libraries

    plan = BucketPlan({"size": (4, 8)})
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"caches", None))
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", lambda data: data)
    monkeypatch.setattr(libraries, "compiled", lambda: {NAME: Path(_ctypes.__file__)})
    cache_file.save(tmp_path / "buckets", plan, [(3,)])
    with monkeypatch.context() as other:
        other.setattr(libraries, "processor", lambda: "another one")
        found, history, warned = cache_file.load(tmp_path / "buckets", ["size"])
    assert (found.buckets, history) == (plan.buckets, [(3,)])
    assert "another processor" in warned
    assert not list(caches.rglob("*.so"))
    assert cache_file.load(tmp_path / "buckets", ["size"])[2] == ""
    assert len(list(caches.rglob("*.so"))) == 1


PROCESS = """
import sys

import torch
from torch._inductor import cpp_builder

import torchtriage as tt

torch.fx.symbolic_trace = None  # while it runs, no other thread may call a module
built = []
build = cpp_builder.CppBuilder.build
cpp_builder.CppBuilder.build = lambda self: (built.append(self.get_target_file_path()), build(self))


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


with torch.no_grad():
    model = tt.BucketedModule(Model().eval(), pad=1, buckets=[8])
    if sys.argv[2] == "second":
        model.load(sys.argv[1])
    model.precompile(example=torch.randn(2, 8))
    x = torch.randn(2, 5)
    assert torch.equal(model(x), torch.relu(x) * 2)
    assert model.stats().hits == 1
    if sys.argv[2] == "first":
        model.save(sys.argv[1])
print(len(built))
"""


@pytest.mark.slow  # the C++ compiler runs, which is what the second process is to be spared
def test_the_next_process_does_not_run_the_compiler(tmp_path: Path) -> None:
    script = tmp_path / "process.py"
    script.write_text(PROCESS)
    n_built = []
    for process in ("first", "second"):
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path / "buckets"), process],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / process)},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        n_built.append(int(done.stdout))
    assert n_built[0] > 0
    assert n_built[1] == 0
