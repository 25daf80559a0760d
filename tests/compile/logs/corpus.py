"""Small programs, one for each common cause of a graph break or a recompilation, and its cure.

Run as a script with ``TORCH_TRACE`` set. Every program is a pair: ``NAME`` has its cause, that of a
break on the line marked ``# here``; ``NAME_cured`` is the same with the fix that the report shows, and
``needless_cured`` that of all whose line is needless. Recompilations that are ordinary have no cure.
"""

import datetime
import hashlib
import importlib
import json
import logging
import random
import subprocess
import sys
import threading
import time
import types as python_types
import warnings
from collections.abc import Callable

import numpy as np
import torch
from corpus_tables import BREAKS, DYNAMIC

LOGGER = logging.getLogger("corpus")
LEAF = torch.ones(8, requires_grad=True)
LOCK = threading.Lock()
N_GLOBAL = 2
GLOBAL = torch.tensor(2)


def inputs() -> torch.Tensor:
    return torch.arange(1.0, 9.0)


# -- graph breaks ------------------------------------------------------------------------------


def printing(x):
    y = x.sin()
    print("mean", y)  # here
    return y.cos()


def branching(x):
    y = x.sin()
    if y.sum() > 0:  # here
        y = 2 * y
    return y.cos()


def branching_cured(x):
    y = x.sin()
    return torch.where(y.sum() > 0, 2 * y, y).cos()


def item_read(x):
    y = x.sin()
    n = y.sum().item()  # here
    return y * n


def item_read_cured(x):
    y = x.sin()
    return y * y.sum()


def to_list(x):
    y = x.sin()
    n = y.tolist()  # here
    return y + n[0]


def to_list_cured(x):
    y = x.sin()
    return y + y[0]


def asked_for(x):
    y = x.sin()
    torch._dynamo.graph_break()  # here
    return y.cos()


def nonzero_rows(x):
    y = x.sin()
    rows = torch.nonzero(y)  # here
    return y.sum() + rows.sum()


def nonzero_rows_cured(x):
    y = x.sin()
    return y.sum() + torch.where(y != 0, 1, 0).sum()


def masked_index(x):
    y = x.sin()
    z = y[y > 0]  # here
    return z.sum()


def masked_index_cured(x):
    y = x.sin()
    return torch.where(y > 0, y, 0).sum()


@torch.compiler.disable
def kept_out(x):
    return x + 1


def disabled_call(x):
    y = x.sin()
    y = kept_out(y)  # here
    return y.cos()


def disabled_call_cured(x):
    return (x.sin() + 1).cos()


def bool_of_tensor(x):
    y = x.sin()
    flag = bool(y.any())  # here
    return y if flag else -y


def bool_of_tensor_cured(x):
    y = x.sin()
    return torch.where(y.any(), y, -y)


def while_tensor(x):
    y = x.sin()
    while y.sum() > 100:  # here
        y = y / 2
    return y


def while_tensor_cured(x):
    y = x.sin()
    return y * torch.clamp(100 / y.sum(), max=1)


def int_of_tensor(x):
    y = x.sin()
    int(y.sum())  # here
    return y.cos()


def needless_cured(x):
    return x.sin().cos()


def open_file(x):
    y = x.sin()
    open("/dev/null")  # noqa: PTH123, SIM115 # here
    return y.cos()


def save_file(x):
    y = x.sin()
    torch.save(y, "/dev/null")  # here
    return y.cos()


def numpy_random(x):
    y = x.sin()
    np.random.default_rng(0)  # here
    return y.cos()


def size_of_object(x):
    y = x.sin()
    n = sys.getsizeof(y)  # here
    return y + n


def size_of_object_cured(x):
    return x.sin() + 64


def backward_call(x):
    y = (x * LEAF).sum()
    y.backward()  # here
    return y


def backward_call_cured(x):
    return (x * LEAF).sum()


def clock(x):
    y = x.sin()
    time.sleep(0)  # here
    return y.cos()


def locking(x):
    y = x.sin()
    LOCK.acquire(blocking=False)  # here
    return y.cos()


def json_text(x):
    y = x.sin()
    json.dumps({"a": 1.5})  # here
    return y.cos()


def date(x):
    y = x.sin()
    datetime.datetime.now()  # here
    return y.cos()


def generator(x):
    y = x.sin()
    random.Random(3).gauss(0, 1)  # here
    return y.cos()


def writing(x):
    y = x.sin()
    sys.stdout.write("")  # here
    return y.cos()


def importing(x):
    y = x.sin()
    importlib.import_module("json")  # here
    return y.cos()


def digest(x):
    y = x.sin()
    hashlib.md5(b"x").hexdigest()  # here
    return y.cos()


def unique_values(x):
    y = x.sin()
    torch.unique(y)  # here
    return y.cos()


def subprocesses(x):
    y = x.sin()
    subprocess.run(["true"])  # here
    return y.cos()


def repeats(x):
    y = x.sin()
    torch.repeat_interleave(torch.arange(8))  # here
    return y.cos()


def seeding(x):
    y = x.sin()
    torch.manual_seed(0)  # here
    return y.cos()


def logging_call(x):
    y = x.sin()
    LOGGER.warning("mean %s", y)  # here
    return y.cos()


def warning(x):
    y = x.sin()
    warnings.warn("slow", stacklevel=2)  # here
    return y.cos()


# -- recompilations ----------------------------------------------------------------------------


def sizes(x):
    return x.sin() + 1


def dtypes(x):
    return x.sin() + 1


def ranks(x):
    return x.sin() + 1


def grads(x):
    return x.sin() + 1


def strides(x):
    return x.sin() + 1


def integers(x, n):
    return x.sin() + n


def floats(x, n):
    return x.sin() + n


def texts(x, mode):
    return x.sin() if mode == "a" else x.cos()


def flags(x, flag):
    return x.sin() if flag else x.cos()


def nothings(x, other):
    return x.sin() if other is None else x + other


def lengths(xs):
    return sum(x.sum() for x in xs)


def callables(x, fn):
    return fn(x) + 1


def modes(x):
    return x.sin() + 1


def keys(d):
    return sum(value.sum() for value in d.values())


class Switching(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5, self.training).sin()


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        return x.sin() + self.n


def shared(x, y):
    return x.sin() + y.mul_(1)


def globally(x):
    return x.sin() + N_GLOBAL


def tuples(xs):
    return xs[0] + len(xs)


def single_rows(x):
    return x.sin() + 1


def default_dtypes(x):
    return x.sin() + torch.ones(8)


def subclasses(x):
    return x.sin() + 1


def types(x, n):
    return x.sin() + n


def bounded(x):
    return x.sin() if x.shape[0] < 6 else x.cos()


def calls() -> dict[str, list[Callable[[Callable[..., object]], object]]]:
    """Return calls of each program that let a guard fail."""
    x, same = inputs(), inputs()
    return {
        "sizes": [lambda f, n=n: f(torch.ones(n)) for n in (4, 5)],
        "dtypes": [lambda f: f(x), lambda f: f(x.double())],
        "ranks": [lambda f: f(x), lambda f: f(x.view(2, 4))],
        "grads": [lambda f: f(x), lambda f: f(x.clone().requires_grad_())],
        "strides": [lambda f: f(torch.ones(4, 4)), lambda f: f(torch.ones(4, 8)[:, ::2])],
        "integers": [lambda f, n=n: f(x, n) for n in (2, 3)],
        "floats": [lambda f, n=n: f(x, n) for n in (2.5, 3.5)],
        "texts": [lambda f, n=n: f(x, n) for n in ("a", "b")],
        "flags": [lambda f, n=n: f(x, n) for n in (True, False)],
        "nothings": [lambda f, n=n: f(x, n) for n in (None, x)],
        "lengths": [lambda f, n=n: f([x] * n) for n in (2, 3)],
        "callables": [lambda f: f(x, lambda y: y * 2), lambda f: f(x, lambda y: y * 3)],
        "modes": [lambda f: f(x), lambda f: no_grad(f, x)],
        "shared": [lambda f: f(x, x.clone()), lambda f: f(same, same)],
        "globally": [lambda f: f(x), lambda f: with_global(f, x)],
        "tuples": [lambda f, n=n: f((x,) * n) for n in (2, 3)],
        "single_rows": [lambda f, n=n: f(torch.ones(n, 3)) for n in (1, 5)],
        "default_dtypes": [lambda f: f(x), lambda f: in_double(f, x)],
        "subclasses": [lambda f: f(x), lambda f: f(torch.nn.Parameter(x))],
        "types": [lambda f, n=n: f(x, n) for n in (2, 2.5)],
        "bounded": [lambda f, n=n: f(torch.ones(n)) for n in (3, 4, 7)],
        "keys": [lambda f: f({"a": x}), lambda f: f({"a": x, "b": x})],
    }


def texts_cured_sine(x):
    return x.sin()


def texts_cured_cosine(x):
    return x.cos()


def globally_cured(x):
    return x.sin() + GLOBAL


class CountingCured(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n = torch.zeros(())

    def forward(self, x):
        self.n += 1
        return x.sin() + self.n


def cured_calls() -> dict[str, list[Callable[[Callable[..., object]], object]]]:
    """Return the same calls with the cure that the report shows; each program runs afresh."""
    x, same = inputs(), inputs()
    once = callables_once
    return {
        "sizes": [lambda f, n=n: f(marked(torch.ones(n))) for n in (4, 5)],
        "dtypes": [lambda f, y=y: f(y.to(torch.float32)) for y in (x, x.double())],
        "ranks": [lambda f, y=y: f(y.flatten()) for y in (x, x.view(2, 4))],
        "grads": [lambda f, y=y: f(y.detach()) for y in (x, x.clone().requires_grad_())],
        "strides": [lambda f, y=y: f(y.contiguous()) for y in (torch.ones(4, 4), torch.ones(4, 8)[:, ::2])],
        "integers": [lambda f, n=n: f(x, torch.tensor(n)) for n in (2, 3)],
        "floats": [lambda f, n=n: f(x, torch.tensor(n)) for n in (2.5, 3.5)],
        "nothings": [lambda f, y=y: f(x, y) for y in (torch.zeros(8), x.clone())],
        "lengths": [lambda f, n=n: f(padded([x.clone() for _ in range(n)], 3)) for n in (2, 3)],
        "callables": [lambda f: f(x, once), lambda f: f(x, once)],
        "modes": [lambda f: no_grad(f, x), lambda f: no_grad(f, x)],
        "shared": [lambda f: f(x, x.clone()), lambda f: f(same, same.clone())],
        "tuples": [lambda f, n=n: f(padded([x.clone() for _ in range(n)], 3)) for n in (2, 3)],
        "single_rows": [lambda f, n=n: f(unbacked(torch.ones(n, 3))) for n in (1, 5)],
        "default_dtypes": [lambda f: in_double(f, x), lambda f: in_double(f, x)],
        "subclasses": [lambda f, y=y: f(y.detach()) for y in (x, torch.nn.Parameter(x))],
        "types": [lambda f, n=n: f(x, torch.tensor(float(n))) for n in (2, 2.5)],
        "bounded": [lambda f, n=n: f(torch.nn.functional.pad(torch.ones(n), (0, 8 - n))) for n in (3, 4, 7)],
        "keys": [lambda f, y=y: f({"a": x, "b": y}) for y in (torch.zeros(8), x.clone())],
    }


def callables_once(y):
    return y * 2


def marked(x):
    torch._dynamo.mark_dynamic(x, 0)
    return x


def unbacked(x):
    torch._dynamo.decorators.mark_unbacked(x, 0)
    return x


def padded(xs, n):
    return xs + [torch.zeros_like(xs[0])] * (n - len(xs))


def renamed(function, name):
    """Return a copy that the compiler knows nothing of."""
    code = function.__code__.replace(co_name=name)
    return python_types.FunctionType(code, function.__globals__, name)


def no_grad(f, x):
    with torch.no_grad():
        return f(x)


def with_global(f, x):
    global N_GLOBAL
    N_GLOBAL += 1
    return f(x)


def in_double(f, x):
    torch.set_default_dtype(torch.float64)
    try:
        return f(x)
    finally:
        torch.set_default_dtype(torch.float32)


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    here = globals()
    for name in BREAKS:
        for program in (here[name], here.get(f"{name}_cured", needless_cured)):
            torch.compile(program, backend="eager")(inputs())
    for name, several in calls().items():
        compiled = torch.compile(here[name], backend="eager")
        for call in several:
            call(compiled)
    for name, several in cured_calls().items():
        compiled = torch.compile(renamed(here[name], f"{name}_cured"), backend="eager")
        for call in several:
            call(compiled)
    for name in DYNAMIC:
        symbolic = renamed(here[name], f"{name}_cured_dynamic")
        compiled = torch.compile(symbolic, backend="eager", dynamic=True)
        for call in calls()[name]:
            call(compiled)
    chosen = {"a": texts_cured_sine, "b": texts_cured_cosine}
    for mode in ("a", "b"):
        torch.compile(chosen[mode], backend="eager")(inputs())
    compiled = torch.compile(globally_cured, backend="eager")
    for _ in range(2):
        compiled(inputs())
        GLOBAL.add_(1)
    net = Switching()
    compiled = torch.compile(net, backend="eager")
    for training in (True, False):
        net.train(training)
        compiled(inputs())
    for counter in (Counting(), CountingCured()):
        counting = torch.compile(counter, backend="eager")
        for _ in range(3):
            counting(inputs())


if __name__ == "__main__":
    main()
