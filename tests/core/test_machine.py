"""The machine's fingerprint, and whether it was quiet: from planted files of the kernel."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchtriage.core import machine
from torchtriage.core.machine import (
    HostUse,
    Reading,
    gather_machine,
    judge_noise,
    read_host,
    read_kernel_file,
    use_between,
)
from torchtriage.core.samples import Machine


def quiet(wall_s: float = 1.0, own_s: float = 0.99) -> HostUse:
    return HostUse(wall_s, own_s, others_s=0.02 * wall_s, stolen_s=0.0, n_cores=4)


def plant(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_quiet_host_is_quiet() -> None:
    assert str(judge_noise([quiet()] * 10)) == "quiet"


def test_a_busy_neighbour_is_no_noise_while_cores_are_free() -> None:
    many_cores = HostUse(1.0, 1.0, others_s=1.0, stolen_s=0.0, n_cores=32)
    assert judge_noise([many_cores] * 10).status == "quiet"


def test_others_on_a_full_machine_are_noise() -> None:
    noise = judge_noise([HostUse(2.0, 2.0, others_s=1.8, stolen_s=0.0, n_cores=2)] * 3)
    assert str(noise) == "noisy: other processes used 0.9 of 2 cores meanwhile"


def test_much_of_others_is_noise_also_while_cores_are_free() -> None:
    noise = judge_noise([HostUse(2.0, 0.4, others_s=1.2, stolen_s=0.0, n_cores=2)] * 3)
    assert str(noise) == "noisy: other processes used 0.6 of 2 cores meanwhile"


def test_a_program_that_fills_the_machine_itself_is_no_noise() -> None:
    assert judge_noise([HostUse(2.0, 3.98, 0.02, 0.0, n_cores=2)] * 10).status == "quiet"


def test_stolen_time_is_noise() -> None:
    noise = judge_noise([HostUse(1.0, 1.0, 0.0, stolen_s=0.08, n_cores=2)] * 3)
    assert str(noise) == "noisy: 4.0 % of CPU time was stolen by the hypervisor"


def test_wall_times_that_vary_alone_are_noise_even_where_the_kernel_tells_nothing() -> None:
    walls = (1.0, 1.3, 1.0, 1.4, 1.1, 1.5)
    noise = judge_noise([HostUse(wall, 0.95) for wall in walls])
    assert noise.status == "noisy"
    assert noise.reasons[0].startswith("wall time varies by")


def test_what_varies_with_its_cpu_time_is_the_programs_own() -> None:
    walls = (1.0, 1.3, 1.0, 1.4, 1.1, 1.5)
    assert judge_noise([quiet(wall, 0.99 * wall) for wall in walls]).status == "quiet"


def test_a_program_that_waits_for_a_device_is_not_judged_by_its_cpu_time() -> None:
    walls = (1.0, 1.3, 1.0, 1.4, 1.1, 1.5)
    assert judge_noise([quiet(wall, 0.2) for wall in walls]).status == "quiet"


def test_kernel_files_are_read_whole_or_the_reason_is_told(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_bytes(b"99 7 1\n\0")
    assert read_kernel_file(str(path)) == b"99 7 1\n\0"
    with pytest.raises(FileNotFoundError, match="none"):
        read_kernel_file(f"{tmp_path}/none")
    with pytest.raises(OSError, match=tmp_path.name):
        read_kernel_file(str(tmp_path))


def test_a_machine_of_a_thousand_processors_is_counted_whole(tmp_path: Path) -> None:
    one = "cpu%d 4705 356 584 3699 23 23 0 0 0 0\n"
    text = "cpu  100 10 50 900 40 5 5 7 3 0\n" + "".join(one % k for k in range(1024))
    assert len(text) > 1 << 15
    reading = read_host(plant(tmp_path, proc__stat=text + "intr 5\n"))
    assert reading is not None
    assert reading.n_cores == 1024


def test_not_checked_is_not_quiet() -> None:
    assert judge_noise([]).status == "not checked"
    assert judge_noise([HostUse(1.0, None)]).status == "not checked"
    # one session that was not watched: the others do not speak for it
    assert judge_noise([quiet(), HostUse(1.0, 0.9)]).status == "not checked"
    noise = judge_noise([HostUse(0.1, 0.1, 0.1, 0.0, 1)])
    assert str(noise) == "not checked: ran for 0.1 s, too short to be sure"


def test_readings_of_proc_stat(tmp_path: Path) -> None:
    before = read_host(plant(tmp_path, proc__stat="cpu  100 10 50 900 40 5 5 7 3 0\ncpu0 1\ncpu1 1\n"))
    assert before == Reading(before.at_s, busy_s=1.70, stolen_s=0.07, n_cores=2) if before else False
    after = Reading(0.0, busy_s=3.70, stolen_s=0.17, n_cores=2)
    use = use_between(before, after, wall_s=1.5, own_s=1.25)
    assert use.others_s == pytest.approx(0.75)
    assert use.stolen_s == pytest.approx(0.10)
    assert use_between(before, after, wall_s=1.5, own_s=9.0).others_s == 0.0
    assert use_between(None, after, wall_s=1.5, own_s=9.0) == HostUse(1.5, 9.0)


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu  1 2 3\n", "cpu  a b c d e f g h\n", "intr 1 2 3 4 5 6 7 8\n"])
def test_a_kernel_that_tells_nothing(tmp_path: Path, text: str) -> None:
    assert read_host(plant(tmp_path, proc__stat=text)) is None
    assert read_host(tmp_path / "none") is None


@pytest.mark.timing
def test_this_host_with_another_process_on_every_core_is_noisy() -> None:
    """The real kernel: what we burn elsewhere is seen."""
    if read_host() is None:
        pytest.skip("no /proc/stat here")
    burn = "import time; end = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
    n = (machine.allowed_cpus() or 1) * 2
    others = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(n)]
    try:
        time.sleep(0.5)
        before, began_s, own_s = read_host(), time.monotonic(), time.process_time()
        while time.monotonic() - began_s < 1.0:
            pass
        wall_s = time.monotonic() - began_s
        use = use_between(before, read_host(), wall_s=wall_s, own_s=time.process_time() - own_s)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert use.others_s is not None
    assert use.others_s > 0.25
    if use.n_cores <= 2 * n:
        assert judge_noise([use]).status == "noisy"


def test_the_fingerprint_is_of_what_makes_times_comparable() -> None:
    one = Machine((("cores", "8"), ("cpu", "Fast 9000"), ("host", "a"), ("kernel", "6.1")))
    other_host = Machine((("cores", "8"), ("cpu", "Fast 9000"), ("host", "b"), ("kernel", "6.2")))
    other_cpu = Machine((("cores", "8"), ("cpu", "Fast 9001"), ("host", "a"), ("kernel", "6.1")))
    assert one.fingerprint == other_host.fingerprint
    assert one.fingerprint != other_cpu.fingerprint
    assert Machine(tuple(reversed(one.fields))).fingerprint == one.fingerprint
    # stored ones have to be found again in years
    assert one.fingerprint == "7c78c478bbb0"
    assert Machine((("host", "a"),)).fingerprint == Machine().fingerprint == "unknown"


def test_this_machine_twice_is_one_machine() -> None:
    one = gather_machine()
    assert one == gather_machine()
    assert one.fingerprint != "unknown"
    assert [name for name, _ in one.fields] == sorted(name for name, _ in one.fields)
    assert all(value and value == " ".join(value.split()) for _, value in one.fields)


def test_a_container_with_a_quota_is_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr(machine, "allowed_cpus", lambda: 16)
    whole = plant(tmp_path / "a", sys__fs__cgroup__cpu_max="max 100000")
    (whole / "sys/fs/cgroup/cpu_max").rename(whole / "sys/fs/cgroup/cpu.max")
    part = plant(tmp_path / "b", sys__fs__cgroup__cpu_max="250000 100000")
    (part / "sys/fs/cgroup/cpu_max").rename(part / "sys/fs/cgroup/cpu.max")
    assert dict(gather_machine(whole).fields)["cores"] == "16"
    assert dict(gather_machine(part).fields)["cores"] == "2.5 of 16"


def test_gpus_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    row = "NVIDIA H100 80GB HBM3, 81559"
    smi.write_text(f"#!/bin/sh\necho '{row}'\necho '{row}'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    fields = dict(gather_machine(tmp_path).fields)
    assert (fields["gpu"], fields["gpus"]) == ("NVIDIA H100 80GB HBM3", "2")
    assert fields["gpu memory"] == "80 GiB"
    smi.write_text("#!/bin/sh\necho 'Unable to determine the device handle' >&2\nexit 15\n")
    assert "gpu" not in dict(gather_machine(tmp_path).fields)


def test_gpus_of_amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    nodes = "sys__class__kfd__kfd__topology__nodes"
    plant(
        tmp_path,
        **{
            f"{nodes}__0__properties": "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\n",
            f"{nodes}__1__properties": "simd_count 440\ngfx_target_version 90010\n",
        },
        sys__module__amdgpu__version="6.3.6\n",
    )
    fields = dict(gather_machine(tmp_path).fields)
    assert (fields["gpu"], fields["gpus"]) == ("AMD gfx target 90010", "1")
    assert fields["driver"] == "6.3.6"
