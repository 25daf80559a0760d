"""What survives anonymising is public, what is private does not, and a key file brings it back."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import TraceBuilder

from torchtriage.core.errors import UsageError
from torchtriage.core.trace import Kind
from torchtriage.core.trace.anonymise import Anonymiser
from torchtriage.core.trace.frames import is_user_frame
from torchtriage.core.trace.operator_words import OPERATOR_WORDS
from torchtriage.core.trace.pseudonyms import Pseudonyms, restore
from torchtriage.core.trace.schema import PSEUDONYM

PUBLIC = [
    (Kind.OP, "aten::scaled_dot_product_attention"),
    (Kind.OP, "autograd::engine::evaluate_function: AddmmBackward0"),
    (Kind.OP, "torch::autograd::AccumulateGrad"),
    (Kind.OP, "record_param_comms"),
    (Kind.OP, "torch.distributed.ddp.reducer::copy_bucket_to_grad"),
    (Kind.OP, "TorchDynamo Cache Lookup"),
    (Kind.OP, "AOTDispatcher Runtime Wrapper Prologue"),
    (Kind.ANNOTATION, "ProfilerStep#12"),
    (Kind.ANNOTATION, "Optimizer.step#AdamW.step"),
    (Kind.ANNOTATION, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
    (Kind.ANNOTATION, "nccl:all_reduce"),
    (Kind.ANNOTATION, "DistributedDataParallel.forward"),
    (Kind.ANNOTATION, "_compile.compile_inner (dynamo_timed)"),
    (Kind.ANNOTATION, "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)"),
    (Kind.ANNOTATION, "step[DECODE bs=32]"),
    (Kind.RUNTIME, "cudaLaunchKernel"),
    (Kind.RUNTIME, "hipGetDevicePropertiesR0600"),
    (Kind.MEMCPY, "Memcpy HtoD (Pageable -> Device)"),
    (Kind.KERNEL, "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"),
    (Kind.KERNEL, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    (Kind.KERNEL, "triton_poi_fused__unsafe_view_mul_silu_2"),
    (Kind.KERNEL, "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x32x512_MI16x16x1_SN_LDSB1_AFC1"),
    (Kind.KERNEL, "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfEEEEvT1_"),
    (
        Kind.KERNEL,
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 3, 64, 64>(float*, int)",
    ),
    (Kind.KERNEL, "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4>(cutlass_80::Params)"),
    (Kind.PYTHON, "torch/nn/modules/linear.py(96): forward"),
    (Kind.PYTHON, "vllm/v1/worker/gpu_model_runner.py(1200): execute_model"),
    (Kind.PYTHON, "threading.py(1): run"),
    (Kind.PYTHON, "nn.Module: MultiheadAttention_12"),
    (Kind.PYTHON, "<built-in method matmul of type object at 0x7f1abc8051c0>"),
    (Kind.PYTHON, "<built-in function collect>"),
    (Kind.PYTHON, "<built-in method run_backward of torch._C._EngineBase object at 0x7f>"),
    (Kind.PYTHON, "Python GC"),
    (Kind.PYTHON, "<frozen importlib._bootstrap>(1027): _find_and_load"),
    (Kind.PYTHON, "json/decoder.py(332): decode"),
    (Kind.PYTHON, "concurrent/futures/thread.py(58): run"),
    (Kind.PYTHON, "<built-in method acquire of _thread.RLock object at 0x7f>"),
    (Kind.PYTHON, "<built-in method read of _io.BufferedReader object at 0x7f>"),
    (Kind.OP, "quantized::conv2d_relu"),
    (Kind.OP, "torch::jit::InterpreterState"),
    (Kind.OP, "torch::autograd::CopySlices"),
    (Kind.RUNTIME, "aclrtSynchronizeStream"),
    (Kind.KERNEL, "aclnnAddmm_MatMulCommon_MatMulV2"),
    (Kind.KERNEL, "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x8_wt64x16x4_ws1x1_ta1x1x8x1_1x8x1x32_pta"),
    (Kind.KERNEL, "__amd_rocclr_copyBuffer"),
    (Kind.KERNEL, "MIOpenBatchNormFwdTrainSpatial"),
    (Kind.KERNEL, "cunn_SoftMaxForward"),
    (Kind.KERNEL, "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEEEEviT0_T1_"),
]

PRIVATE = [
    (Kind.PYTHON, "/home/alice/acme/train.py(12): train_step", ["alice", "acme", "train"]),
    (Kind.PYTHON, r"C:\Users\Alice\acme\fit.py(1): fit", ["Users", "Alice", "acme", "fit"]),
    (Kind.PYTHON, "nn.Module: AcmeAttention_3", ["Acme", "Attention"]),
    (
        Kind.PYTHON,
        "/home/alice/envs/acme/lib/python3.10/site-packages/torch/nn/modules/module.py(1501): _call_impl",
        ["alice", "acme"],
    ),
    (Kind.PYTHON, "x/site-packages/acmelib/net.py(1): attend", ["acmelib", "net.py", "attend"]),
    (Kind.PYTHON, "train.py(3): torch_dynamo_resume_in_secret_at_7", ["train.py", "secret"]),
    (
        Kind.PYTHON,
        "/cache/alice/dn/cdniggnbpjo6ck7jj7d4oel3kskalexpxacrci3ow345jwe33wgw.py(16): call",
        ["alice", "cdniggnbpjo6ck7jj7d4oel3kskalexpxacrci3ow345jwe33wgw"],
    ),
    (Kind.PYTHON, "/tmp/torchinductor_alice/train.py(16): step", ["alice", "train"]),
    (Kind.PYTHON, "<built-in method acme_run of AcmeThing object at 0x7f>", ["acme", "Acme"]),
    (Kind.OP, "acme::fused_attention", ["acme"]),
    (Kind.OP, "autograd::engine::evaluate_function: RopeLoraFnBackward", ["Lora"]),
    (Kind.KERNEL, "triton_poi_fused_acme_add_0", ["acme"]),
    (Kind.KERNEL, "_ZN4acme12secret_thingILi4EEEvPf", ["acme", "secret"]),
    (Kind.KERNEL, "void at::native::elementwise_kernel<128, 2, acme::Trick<float>>(int)", ["acme", "Trick"]),
    (Kind.KERNEL, "void (anonymous namespace)::acme_trick(float*)", ["acme", "trick"]),
    (Kind.KERNEL, "void cuda::aux_fi_impl(long const*)", ["aux_fi"]),
    (Kind.RUNTIME, "predictor_executor::run gif_thread_id:1454", ["predictor", "gif"]),
    (Kind.ANNOTATION, "alice@acme.com run 1234567890", ["alice", "acme", "1234567890"]),
    (Kind.ANNOTATION, "Optimizer.step#AcmeOptimus.step", ["Acme", "Optimus"]),
    (Kind.ANNOTATION, "Проект Альфа", ["Проект", "Альфа"]),
    (Kind.KERNEL, "_ZN2at6native6kernelI10AcmeSecretEEvT_", ["Acme", "Secret"]),
    (Kind.KERNEL, "_ZN3cub12DeviceKernelI10AcmeSecretLi3EEvT_", ["Acme", "Secret"]),
    (Kind.KERNEL, "_ZN2at6native6kernelEPfRK10AcmeSecret", ["Acme", "Secret"]),
    (Kind.KERNEL, "_ZN2at6native6kernelIN4acme3barENS2_6SecretEEEvT_", ["acme", "Secret"]),
    (Kind.KERNEL, "_ZN4acme2at6secretEPf", ["acme", "secret"]),
    (Kind.PYTHON, "<built-in method run of _AcmeSecretEngine object at 0x7f>", ["Acme", "Secret"]),
    (Kind.PYTHON, "<built-in method run of _acme_secret.Engine object at 0x7f>", ["acme", "secret"]),
    (Kind.PYTHON, "code/acme_secret.py(3): secret_fn", ["acme", "secret"]),
    (Kind.PYTHON, "platform/acme/secret.py(3): secret_fn", ["acme", "secret"]),
    (Kind.PYTHON, "email/alice.py(3): secret_fn", ["alice", "secret"]),
    (Kind.PYTHON, "json/../acme.py(3): secret_fn", ["acme", "secret"]),
    (Kind.PYTHON, "/home/alice/lib/profile/secret_thing.py(3): secret_fn", ["alice", "secret"]),
    (Kind.PYTHON, "wandb/run-acme/code/train.py(3): secret_fn", ["acme", "train", "secret"]),
    (Kind.PYTHON, "transformers/acme dir/x.py(3): secret_fn", ["acme", "secret"]),
    (Kind.PYTHON, "torch/../acme/x.py(3): secret_fn", ["acme", "secret"]),
    (Kind.PYTHON, "<frozen os.secret_acme>(3): alice", ["acme", "secret", "alice"]),
    (Kind.PYTHON, "/home/12345678/proj/x.py(1): f", ["12345678", "proj"]),
    (Kind.PYTHON, "<frozen acme.secret>(3): alice", ["acme", "secret", "alice"]),
    (Kind.PYTHON, "Python GC acme secret", ["acme", "secret"]),
    (Kind.KERNEL, "internal::acme_secret_kernel", ["acme", "secret"]),
    (Kind.OP, "profiler::acme_secret", ["acme", "secret"]),
    (Kind.OP, "torch::acme::secret", ["acme", "secret"]),
    (Kind.OP, "xla::acme", ["acme"]),
    (Kind.OP, "autograd::engine::evaluate_function: xla::acme", ["acme"]),
    (Kind.KERNEL, "_ZN27_GLOBAL__N__0_7_acme_cu_7f_6secretEv", ["acme", "secret"]),
    (Kind.KERNEL, "std::acme_secret", ["acme", "secret"]),
    (Kind.KERNEL, "torch::autograd::AcmeSecret", ["acme", "secret"]),
    (Kind.KERNEL, "aclAcmeSecret", ["acme", "secret"]),
    (Kind.KERNEL, "cunn_AcmeSecret", ["acme", "secret"]),
    (Kind.KERNEL, "igemm_fwd_gtc_acme_secret", ["acme", "secret"]),
    (Kind.KERNEL, "MIOpenAcmeSecret", ["acme", "secret"]),
    (Kind.OP, "torch.distributed.acme.secret::x", ["acme", "secret"]),
]


@pytest.mark.parametrize(("kind", "name"), PUBLIC)
def test_public_names_survive(kind, name):
    assert Anonymiser(Pseudonyms()).name(kind, name) == name


@pytest.mark.parametrize(("kind", "name", "secrets"), PRIVATE)
def test_private_names_do_not(kind, name, secrets):
    shown = Anonymiser(Pseudonyms()).name(kind, name)
    assert not [secret for secret in secrets if secret.lower() in shown.lower()], shown
    assert is_user_frame(shown) == is_user_frame(name)


@pytest.mark.parametrize(("kind", "name", "secrets"), [item for item in PRIVATE if not item[1].startswith("_Z")])
def test_a_key_restores_names(kind, name, secrets):
    pseudonyms = Pseudonyms()
    assert restore(Anonymiser(pseudonyms).name(kind, name), pseudonyms.names) == name


def test_mangled_names_stay_symbols():
    shown = Anonymiser(Pseudonyms()).name(Kind.KERNEL, "_ZN4acme12secret_thingILi4EEEvPf")
    lengths = [(int(n), len(word)) for n, word in re.findall(r"(\d\d)(xq\w{12}z)", shown)]
    assert lengths == [(15, 15), (15, 15)]
    assert shown.endswith("ILi4EEEvPf")


def test_pseudonyms_are_stable_with_a_key_and_differ_without():
    key = b"k" * 32
    first, again, other = (Pseudonyms(some).of("acme") for some in (key, key, None))
    assert first == again != other
    assert PSEUDONYM.fullmatch(first)
    assert Pseudonyms(key).of("Acme") != first


def test_pseudonyms_spell_no_word_that_a_rule_looks_for():
    from torchtriage.core.trace import kernel_categories

    names = [Pseudonyms(b"k" * 32).of(str(number)) for number in range(2000)]
    assert {kernel_categories.kernel_category(name) for name in names} == {kernel_categories.OTHER}


@pytest.mark.parametrize("unit", ["ms", "ns"])
def test_the_unit_that_viewers_show_stays(unit):
    assert Anonymiser(Pseudonyms()).meta({"displayTimeUnit": unit}) == {"displayTimeUnit": unit}


def test_arguments_labels_and_metadata_are_anonymised():
    builder = TraceBuilder(
        host_name="twshared1.acme.com",
        traceName="/home/alice/t.json",
        user="alice",
        distributedInfo={
            "rank": 1,
            "world_size": 2,
            "job": "acme",
            "pg_config": [{"pg_name": "acme_tp", "ranks": [0]}],
        },
    )
    builder.event("process_name", "", 0, 0, ph="M", name_="")
    builder.events[-1]["args"] = {"name": "python3 /home/alice/acme.py"}
    builder.op("aten::mm", 1, 5, types=["float", "__torch__.acme.Tensor"], concrete=["[1048576, 2]", "acme", "True"])
    trace = Anonymiser(Pseudonyms()).trace(builder.build())
    text = repr((trace.names, trace.labels, trace.meta, trace.details, trace.lanes, trace.report))
    assert not re.search(r"alice|acme|twshared", text)
    assert "[1048576, 2]" in text
    assert trace.meta["distributedInfo"]["rank"] == 1
    assert trace.meta["distributedInfo"]["pg_config"][0]["ranks"] == [0]


@pytest.mark.parametrize("host", ["ip-10-12-34-56.ec2.internal", "10.0.0.5"])
def test_a_host_has_one_pseudonym(host):
    assert PSEUDONYM.fullmatch(Anonymiser(Pseudonyms()).meta({"host_name": host})["host_name"])


def test_arguments_read_from_the_file_are_anonymised():
    builder = TraceBuilder()
    builder.call("cudaLaunchKernel", 1, 2, kernel="acme_kernel", secret="acme")
    trace = Anonymiser(Pseudonyms()).trace(builder.build())
    found = trace.args(0)
    assert set(found) == {"kernel"}
    assert "acme" not in found["kernel"]


def test_commands_that_use_one_key_file_at_a_time_keep_the_names_of_each_other(tmp_path: Path):
    path = tmp_path / "key.json"
    first, second = Pseudonyms.of_file(path), Pseudonyms.of_file(path)
    names = [first.of("alice"), second.of("bob")]
    first.save(path)
    second.save(path)
    assert sorted(Pseudonyms.load(path).names) == sorted(names)


@pytest.mark.parametrize("ends", [Pseudonyms.save, Pseudonyms.take_away])
def test_who_looks_into_a_key_file_is_alone_until_it_is_written_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: Callable[[Pseudonyms, Path], None]
):
    pytest.importorskip("fcntl")
    path = tmp_path / "key.json"
    first, second = Pseudonyms.of_file(path), Pseudonyms.of_file(path)
    name, load = second.of("bob"), Pseudonyms.load
    other = threading.Thread(target=second.save, args=(path,))

    def load_and_let_the_other_try(path: Path) -> Pseudonyms:
        found = load(path)
        monkeypatch.setattr(Pseudonyms, "load", load)
        other.start()
        other.join(0.2)  # with a lock it waits
        return found

    monkeypatch.setattr(Pseudonyms, "load", staticmethod(load_and_let_the_other_try))
    ends(first, path)
    other.join()
    assert Pseudonyms.load(path).names == {name: "bob"}


def test_another_key_that_came_meanwhile_is_not_written_over(tmp_path: Path):
    path = tmp_path / "key.json"
    first = Pseudonyms.of_file(path)
    path.unlink()
    second = Pseudonyms.of_file(path)
    names = [first.of("alice"), second.of("bob")]
    second.save(path)
    with pytest.raises(UsageError, match="found another"):
        first.save(path)
    first.take_away(path)
    assert list(Pseudonyms.load(path).names) == names[1:]


def test_what_a_killed_command_left_refuses_no_key_file(tmp_path: Path):
    (tmp_path / f"key.json.{os.getpid()}.part").write_text("")
    Pseudonyms.of_file(tmp_path / "key.json")


def test_key_file_is_its_owners_and_never_overwritten(tmp_path: Path):
    path = tmp_path / "key.json"
    one = Pseudonyms.of_file(path)
    name = one.of("acme")
    one.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Pseudonyms.of_file(path).of("acme") == name
    assert restore(f"in {name}_gemm", Pseudonyms.load(path).names) == "in acme_gemm"
    with pytest.raises(UsageError, match="cannot be written"):
        Pseudonyms().save(tmp_path / "nowhere" / "key.json")
    other = tmp_path / "report.json"
    other.write_text('{"key": 1}')
    with pytest.raises(UsageError, match="expected a key file"):
        Pseudonyms.of_file(other)
    assert json.loads(other.read_text()) == {"key": 1}


@pytest.mark.torch
def test_no_word_of_an_operator_is_missing():
    import torch

    names = {
        schema.name.split("::")[1] for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")
    }
    words = {word.lower() for name in names for word in re.findall(r"[A-Za-z]{3,}", name)}
    assert not words - OPERATOR_WORDS
