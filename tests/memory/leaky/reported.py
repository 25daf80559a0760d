"""Leaks that people have reported, in small; each cites its thread."""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
import mmap
import queue
import threading
from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import torch
from memory.leaky.cases import fit, leak, mlp, sgd

# -- views that keep their base ----------------------------------------------------------------


@leak("github.com/numpy/numpy/issues/10273", "accum")
def numpy_slices(watch, rng, steps):
    accum = []
    for _ in range(steps):
        sound = np.random.rand(4000)
        accum.append(sound[:10])  # HOLDS
        watch.step()


@leak("github.com/numpy/numpy/issues/19091", "last_rows")
def numpy_rows_in_dict(watch, rng, steps):
    model, last_rows = mlp(), {}
    for step in range(steps):
        table = np.random.random((30, 40))
        model(torch.randn(8, 32))
        last_rows[step] = table[-1]  # HOLDS
        watch.step()


class Extractor:
    def __init__(self):
        self.model = mlp()
        self.features = defaultdict(list)

    @torch.no_grad()
    def extract(self, x):
        hidden = self.model(x)
        self.features["cls"].append(hidden[:1])  # HOLDS


@leak("github.com/ViCCo-Group/thingsvision/pull/150", "extractor.features")
def cls_token(watch, rng, steps):
    extractor = Extractor()
    for _ in range(steps):
        extractor.extract(torch.randn(64, 32))
        watch.step()


class EmbeddingCache:
    def __init__(self):
        self.entries = OrderedDict()

    def put(self, key, value):
        self.entries[key] = value  # HOLDS


@leak("github.com/sgl-project/sglang/pull/39120", "cache.entries")
def split_of_a_batch(watch, rng, steps):
    model, cache = mlp(), EmbeddingCache()
    for step in range(steps):
        with torch.no_grad():
            images = torch.split(model(torch.randn(16, 32)), 1)
        cache.put(f"request {step}", images[0])
        watch.step()


class Token:
    def __init__(self, text):
        self.text, self.embedding = text, None


@leak("github.com/flairNLP/flair/pull/1089", "corpus")
def embeddings_of_tokens(watch, rng, steps):
    embed, corpus = mlp(), []
    for _ in range(steps):
        sentence = [Token(word) for word in ("the", "grass", "is", "green")]
        with torch.no_grad():
            hidden = embed(torch.randn(16, 32))
        for index, token in enumerate(sentence):
            token.embedding = hidden[index]
        corpus.append(sentence)  # HOLDS
        watch.step()


class Decoder:
    def __init__(self):
        self.net, self.conv_states = mlp(), []

    def prefill(self, chunk):
        with torch.no_grad():
            conv_input = self.net(chunk)
        self.conv_states.append(conv_input[-2:])  # HOLDS


@leak("github.com/ml-explore/mlx-lm/pull/1077", "decoder.conv_states")
def conv_states(watch, rng, steps):
    decoder = Decoder()
    for _ in range(steps):
        decoder.prefill(torch.randn(32, 32))
        watch.step()


@leak("github.com/huggingface/transformers/issues/2595", "hidden_of")
def numpy_of_hidden_states(watch, rng, steps):
    model, optimizer, hidden_of = mlp(), None, {}
    optimizer = sgd(model)
    for step in range(steps):
        x = torch.randn(16, 32)
        y = model(x)
        fit(model, optimizer, x)
        hidden_of[f"sentence {step}"] = y.detach().numpy()[0]  # HOLDS
        watch.step()


@leak("github.com/capnproto/pycapnp/pull/406", "payloads")
def memoryviews_of_messages(watch, rng, steps):
    payloads = {}
    for step in range(steps):
        message = bytearray(2048)
        message[:8] = step.to_bytes(8, "little")
        np.random.rand(3000).sum()
        payloads[step] = memoryview(message)[:8]  # HOLDS
        watch.step()


@leak("github.com/DeNA/HandyRL/issues/189", "episodes")
def rows_as_tensors(watch, rng, steps):
    episodes, model = deque(), mlp()
    for _ in range(steps):
        played = np.random.rand(16, 32).astype(np.float32)
        model(torch.from_numpy(played))
        episodes.append(torch.from_numpy(played)[rng.randrange(16)])  # HOLDS
        watch.step()


# -- graphs and outputs ------------------------------------------------------------------------


@leak("github.com/TRI-ML/packnet-sfm/issues/47", "outputs")
def outputs_of_the_epoch(watch, rng, steps):
    model, outputs = mlp(), []
    optimizer = sgd(model)
    for _ in range(steps):
        loss = fit(model, optimizer, torch.randn(16, 32))
        outputs.append({"loss": loss, "metrics": {}})  # HOLDS
        watch.step()


@leak("github.com/pai4451/ML2021/issues/2", "train_loss")
def summed_loss(watch, rng, steps):
    model, train_loss = mlp(), 0
    optimizer = sgd(model)
    for _ in range(steps):
        train_loss += fit(model, optimizer, torch.randn(16, 32))  # HOLDS
        watch.step()


class Runner:
    def __init__(self):
        self.policy, self.batch = mlp(), {"actions": [], "reward": []}

    def act(self, observation):
        actions = self.policy(observation).softmax(-1)
        self.batch["actions"].append(actions)  # HOLDS
        return actions.argmax(-1)


@leak("github.com/oxwhirl/pymarl/pull/73", "runner.batch['actions']")
def actions_with_graphs(watch, rng, steps):
    runner = Runner()
    for _ in range(steps):
        runner.act(torch.randn(4, 32))
        watch.step()


# -- attributes of modules ---------------------------------------------------------------------


class Curve(torch.nn.Module):
    """A metric with list states."""

    def __init__(self):
        super().__init__()
        self.preds = []
        self.total = 0

    def update(self, preds):
        self.preds.append(preds)  # HOLDS
        self.total += len(preds)


@leak("github.com/Lightning-AI/torchmetrics/issues/2921", "trainer.metric.preds", "metric.preds")
def list_state_of_a_metric(watch, rng, steps):
    model, metric = mlp(), Curve()
    optimizer = sgd(model)
    for _ in range(steps):
        x = torch.randn(4, 32)
        fit(model, optimizer, x)
        metric.update(model(x).detach().flatten())
        watch.step()


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.maps = []

    def forward(self, x):
        weights = (self.query(x) @ self.key(x).T).softmax(-1)
        self.maps.append(weights.detach())  # HOLDS
        return weights @ x


@leak(
    "github.com/burchim/EfficientConformer/issues/7", "encoder.1.maps", "encoder[1].maps", "encoder._modules['1'].maps"
)
def attention_maps(watch, rng, steps):
    encoder = torch.nn.Sequential(torch.nn.Linear(32, 32), Attention())
    with torch.no_grad():
        for _ in range(steps):
            encoder(torch.randn(11, 32))
            watch.step()


class Causal(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.masks = {}

    def forward(self, x, past):
        key = len(x), past
        if key not in self.masks:
            self.masks[key] = torch.ones(len(x), 32 + past % 64, dtype=torch.bool)  # HOLDS
        return x * self.masks[key][:, :32]


@leak("github.com/CanReader/FastNN/issues/16", "attend.masks")
def masks_by_length(watch, rng, steps):
    attend = Causal()
    for past in range(steps):
        attend(torch.randn(8, 32), past)
        watch.step()


@leak("github.com/meta-pytorch/opacus/issues/176", "model.activations", "layer.activations", "activations")
def activations_of_hooks(watch, rng, steps):
    model = torch.nn.Linear(32, 16)
    model.activations = []

    def capture(module, inputs, output):
        module.activations.append(inputs[0].detach())  # HOLDS

    model.register_forward_hook(capture)
    with torch.no_grad():
        for _ in range(steps):
            model(torch.randn(4, 32))
            watch.step()


# -- iterators and generators ------------------------------------------------------------------


@leak("github.com/pytorch/pytorch/issues/23900", "batches")
def cycled_loader(watch, rng, steps):
    data = [torch.full((32,), float(i)) for i in range(16)]
    loader = torch.utils.data.DataLoader(data * 1000, batch_size=4, shuffle=True)
    model, batches = mlp(), itertools.cycle(loader)
    optimizer = sgd(model)
    for _ in range(steps):
        batch = next(batches)  # HOLDS
        fit(model, optimizer, batch)
        watch.step()


@leak("github.com/kipoi/kipoi/pull/277", "ahead", "again")
def teed_loader(watch, rng, steps):
    ahead, again = itertools.tee(torch.randn(4, 32) for _ in itertools.count())
    model = mlp()
    for _ in range(steps):
        batch = next(ahead)  # HOLDS
        model(batch)
        watch.step()
    return again


def cyclic(data):
    seen = []
    while True:
        batch = torch.randn(4, 32) + data
        seen.append(batch)  # HOLDS
        yield batch


@leak("github.com/Lightricks/LTX-Video-Trainer/pull/6", "batches local seen", "batches.seen", "seen")
def generator_that_keeps(watch, rng, steps):
    model, batches = mlp(), cyclic(torch.zeros(32))
    optimizer = sgd(model)
    for _ in range(steps):
        fit(model, optimizer, next(batches))
        watch.step()


class Stream:
    """Reads ahead, as an iterable dataset does."""

    def __init__(self):
        self.rows = self.read()

    def read(self):
        index = {}
        for number in itertools.count():
            row = np.random.rand(64)
            index[number] = row  # HOLDS
            yield torch.from_numpy(row)


@leak("github.com/pytorch/pytorch/issues/31039", "stream.rows local index", "stream.rows.index", "index")
def generator_of_an_object(watch, rng, steps):
    stream, model = Stream(), mlp(64)
    for _ in range(steps):
        model(next(stream.rows).float())
        watch.step()


# -- callbacks, caches, registries -------------------------------------------------------------


@leak("github.com/cdtools-developers/cdtools/pull/87", "model.callbacks")
def closures_over_tensors(watch, rng, steps):
    model = mlp()
    model.callbacks = []
    for _ in range(steps):
        image = model(torch.randn(4, 32)).detach()
        model.callbacks.append(lambda image=image: image.mean())  # HOLDS
        watch.step()


class Simulations:
    def __init__(self):
        self.model = mlp()

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033
    def item(self, index):
        return self.model(torch.full((4, 32), float(index))).detach()


@leak("github.com/MoonshotAI/Kimi-Audio/issues/117", "data.item", "Simulations.item", "item")
def cached_items(watch, rng, steps):
    data = Simulations()
    for step in range(steps):
        data.item(step).sum()  # HOLDS
        watch.step()


class Client:
    def __init__(self):
        self.log = logging.getLogger("null_logger")
        self.log.addHandler(logging.NullHandler())  # HOLDS


@leak("github.com/PaddleHQ/paddle-python-sdk/issues/144", "client.log.handlers", "null_logger.handlers")
def handlers_of_a_logger(watch, rng, steps):
    model = mlp()
    for _ in range(steps):
        client = Client()
        client.log.info("step")
        model(torch.randn(8, 32))
        watch.step()
    logging.getLogger("null_logger").handlers.clear()


class Queue:
    def __init__(self):
        self.events = {}

    def push(self, number, payload):
        self.events[f"{number:032x}"] = {"payload": payload, "done": True}  # HOLDS


@leak("github.com/gradio-app/gradio/pull/13756", "served.events")
def events_of_a_server(watch, rng, steps):
    model, served = mlp(), Queue()
    for step in range(steps):
        served.push(step, str(rng.random()) * 25)
        model(torch.randn(8, 32))
        watch.step()


class Request:
    def __init__(self, number):
        self.url = f"https://example.org/{number}"
        self.body = b"x" * 400 + str(number).encode()


class Http:
    def __init__(self):
        self.attempts = {}

    def send(self, request):
        self.attempts.setdefault(request, 0)  # HOLDS
        self.attempts[request] += 1


@leak("github.com/airbytehq/airbyte-python-cdk/pull/92", "http.attempts")
def counts_by_request(watch, rng, steps):
    model, http = mlp(), Http()
    for step in range(steps):
        http.send(Request(step))
        model(torch.randn(8, 32))
        watch.step()


@leak("github.com/torproject/stem/pull/156", "failed")
def exceptions_with_frames(watch, rng, steps):
    model, failed = mlp(), []

    def evaluate(x):
        hidden = model(x).detach()
        raise ValueError(f"not finite: {float(hidden.mean()):.3f}")

    for _ in range(steps):
        try:
            evaluate(torch.randn(16, 32))
        except ValueError as error:
            failed.append(error)  # HOLDS
        watch.step()


SMILES_TO_GRAPH: dict[str, Any] = {}


class MolGraph:
    def __init__(self, smiles):
        self.atoms = [ord(smile) for smile in smiles]
        self.bonds = np.zeros((6, 6))
        self.names = {one: index for index, one in enumerate(smiles)}


def featurize(smiles):
    if smiles not in SMILES_TO_GRAPH:
        SMILES_TO_GRAPH[smiles] = MolGraph(smiles)  # HOLDS
    return SMILES_TO_GRAPH[smiles]


@leak("github.com/chemprop/chemprop/issues/32", "SMILES_TO_GRAPH")
def graphs_by_molecule(watch, rng, steps):
    SMILES_TO_GRAPH.clear()
    model = mlp()
    for step in range(steps):
        featurize(f"CC(=O)N{step}")
        model(torch.randn(8, 32))
        watch.step()
    SMILES_TO_GRAPH.clear()


class Orchestrator:
    def __init__(self):
        self.rollout_history = []

    def add(self, rollout):
        self.rollout_history.append(rollout)  # HOLDS


@leak("github.com/PrimeIntellect-ai/prime-rl/pull/1936", "orchestrator.rollout_history")
def rollouts(watch, rng, steps):
    model, orchestrator = mlp(), Orchestrator()
    for _ in range(steps):
        logprobs = model(torch.randn(8, 32)).log_softmax(-1)[:, 0].tolist()
        tokens = [rng.randrange(300, 50_000) for _ in range(96)]
        orchestrator.add({"tokens": tokens, "logprobs": logprobs * 12, "text": "".join(map(chr, tokens))})
        watch.step()


class Pool:
    def __init__(self):
        self.done = queue.Queue()

    def work(self, x):
        self.done.put(x.numpy())  # HOLDS


@leak("github.com/mozilla/grcov/pull/407", "pool.done.queue")
def results_never_taken(watch, rng, steps):
    model, pool = mlp(), Pool()
    for step in range(steps):
        with torch.no_grad():
            pool.work(model(torch.randn(8, 32)))
        if step % 3 == 0:
            pool.done.get()
        watch.step()


class Sessions:
    """Locks that are released and kept."""

    def __init__(self):
        self.locks, self.data = {}, {}

    def open(self, name):
        self.locks.setdefault(name, threading.RLock())  # HOLDS
        with self.locks[name]:
            self.data[name] = {"seen": 1, "user": None, "history": []}
            self.data.pop(name)


@leak("github.com/cherrypy/cherrypy/issues/1082", "sessions.locks")
def locks_of_sessions(watch, rng, steps):
    model, sessions = mlp(), Sessions()
    for _ in range(steps):
        sessions.open(f"{rng.getrandbits(800):0200x}")
        model(torch.randn(8, 32))
        watch.step()


# -- memory that no Python object holds --------------------------------------------------------

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]


def native(size):
    def run(watch, rng, steps):
        model = mlp()
        for _ in range(steps):
            address = libc.malloc(size)
            ctypes.memset(address, 1, size)  # HOLDS
            model(torch.randn(8, 32))
            watch.step()

    run.__name__ = f"native_{size}_bytes"
    return run


leak("github.com/myhub/tr/issues/18")(native(4096))
leak("github.com/xxtea/xxtea-python/issues/5")(native(512))


@leak("github.com/halide/Halide/issues/4859")
def references_never_released(watch, rng, steps):
    model = mlp()
    for _ in range(steps):
        frame = np.random.rand(1024)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(frame))  # HOLDS
        model(torch.randn(8, 32))
        watch.step()


@leak("github.com/burchim/EfficientConformer/issues/7")
def pages_never_unmapped(watch, rng, steps):
    model = mlp()
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    for _ in range(steps):
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = libc.mmap(None, 65536, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0)
        ctypes.memset(pages, 1, 65536)  # HOLDS
        model(torch.randn(8, 32))
        watch.step()
