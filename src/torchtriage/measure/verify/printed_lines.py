"""What a program prints: its lines, and which of their numbers say what it computes.

A line is the words around its numbers. Numbers that tell time, rates, memory, dates, progress, addresses, processes,
ports or paths belong to the machine and the moment: their units and the words beside them say so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

LONGEST = 2048
"""Characters of a line that are looked at."""
MOST_LINES = 20_000
NEAR = 4
"""Words before a number that can say what it is."""

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PROGRESS_BAR = re.compile(
    r"(?<!\d)\d{1,3}%\|[^|]{0,200}\|[^|\[]{0,60}\[[^\]]{0,200}\]|(?<!\d)\d{1,9}it \[[^\]]{0,200}\]"
)
OF_LIBRARIES = re.compile(r"\b\w*Warning: |^\[?[IWEF]\d{4} |\.(?:cpp|cc|cu|h):\d+\b")
"""Warnings and logs. Python's warnings are followed by the line of source that they are about, set in."""
OF_THE_MOMENT = re.compile(
    r"""
    (?<![\w/])(?:[A-Za-z]:)?(?:~|\.{1,2})?[/\\][^\s'",;)\]]+ | \b\w+://\S+  # paths
    | (?<![\w.-])(?=[\d.-]*[A-Za-z_])[\w.-]+(?:/[\w.-]+){2,}
    | (?<![\w./-])[\w./-]+\.(?:py|pth?|json|csv|txt|log|png|jpe?g|npz?|ckpt|safetensors|onnx|pkl|bin|ya?ml)\b(?::\d+)*
    | \b0x[0-9a-f]+ | \b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,}\b  # addresses, digests
    | \b\d{4}[-/]\d\d[-/]\d\d(?:[T_ ]\d\d[:-]\d\d(?:[:-]\d\d)?(?:[.,]\d+)?Z?)? | \b\d\d?/\d\d?/\d{4}\b  # dates
    | \b\d+:\d\d(?::\d\d)?(?:[.,]\d+)?(?![\d:])  # times of day, durations
    | \b\d+\.\d+\.\d+[\w.+-]*  # versions, network addresses
    """,
    re.VERBOSE | re.IGNORECASE,
)
NUMBER = re.compile(
    r"""
    (?<![\w.]) [-+]? (?: (?:\d{1,3}(?:,\d{3})+(?!\d) | \d+) (?:\.\d*)? | \.\d+ ) (?:e[-+]?\d+)? (?![A-Za-z_]*\d)
    | (?<![\w.]) [-+]? (?:nan|inf)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)
OF_A_TOTAL = re.compile(r"[^#~]*# ?/ ?#")
WORD = re.compile(r"f1(?!\d)|[^\W\d_]+", re.IGNORECASE)
BREAK = re.compile(r"[,;|()\[\]{}]")
"""Ends what words say of a number."""
TIME_FOLLOWS = re.compile(r"\b(?:in|p\d\d)[ :=]*$", re.IGNORECASE)
"""Such as ``3 epochs in 0.4``, or a percentile."""
UNIT = re.compile(
    r"""(?:min|h|b|x)(?!\w) | \s{0,4}(?:
    (?: s | secs? | seconds? | ms | msecs? | milliseconds? | [uµμ]s | microseconds? | ns | mins | minutes? | hrs?
    | hours? | days? | fps | qps | rps | ips | [kmg]?hz | [kmgtp]i?b | bytes? | [kmgtp]?flops?/?s? | times ) (?!\w)
    | [a-z]{0,20}\s{0,4}/\s{0,4}[a-z] | [a-z]{0,20}\s{1,4}(?:per|an?)\s{1,4}(?:second|minute|hour|step|batch|iteration)
    )""",
    re.VERBOSE | re.IGNORECASE,
)
OF_THE_MACHINE = re.compile(
    r"""
    times? | took | takes? | taken | elapsed | eta | duration | latency | speed | throughput | runtime | wall
    | clock | now | timestamp | date | uptime | budget | late | deadline | overruns? | missed | dropped | s | secs?
    | seconds? | ms | us | ns | minutes | hours | faster | slower | speedup | [fqrt]ps | ips | progress | percentile
    | mem | memory | rss | v?ram | cuda | alloc | allocated | reserved | bytes | [kmg]i?b | load
    | pid | process | port | threads? | workers? | cores? | host | util | utilization | address | u?id | size
    | fwd | bwd | wait | idle | busy | overhead | finished | completed
    | calls? | passes | launches | graphs? | (?:re)?compil\w* | syncs? | caches?
    | diff | difference | drift | tolerance | [ar]tol  # rounding itself
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Words that say of a number that it is none of what is computed ..."""
OF_A_RESULT = re.compile(
    r"""
    loss | losses | nll | acc | accuracy | accuracies | scores? | err | errors? | f1 | precision | recall | auc | iou
    | bleu | r?mse | mae | perplexity | ppl | rewards? | returns? | success | win
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""... unless one of these is nearer to the number: ``load balance loss``; not so where it is what was timed."""
MEASURED = re.compile(r"\btime to\b|\b(?:throughput|latency|speed|[fqrt]ps|ips) scores?\b", re.IGNORECASE)
WHERE_OR_HOW = re.compile(r"cached|forward|backward|done|gpu|cpu|rates?", re.IGNORECASE)
"""Alone they speak of the machine, beside a name of a result: ``cached mAP``, ``hit rate``."""
NO_NAME = re.compile(
    r"""
    \w | in | at | on | of | to | after | for | with | is | was | the | and | avg | average | mean | median | min | max
    | std | total | sum | peak | percent | pct | usage | used | free | power | temp | pass | count | number | index
    | device | tokens? | data | bit | transfer | sampling | refresh
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Words that name no result, beside those of ``COUNTER``: ``GPU usage``, ``frame rate``."""
CALLS = re.compile(r"\b(?:evals|evaluations)$", re.IGNORECASE)
"""Beside a whole number: so many. A fraction is what they gave."""
COUNTER = re.compile(
    r"""
    steps? | epochs? | iters? | iterations? | it | batch | batches | chunks? | updates? | rounds? | gen | generations?
    | trial | frames? | requests? | episodes? | folds? | ticks? | query | image | sample | item | row | prompt | seq
    | sequence | task | case | layer | rank
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Words that say of a number that it tells which line this is."""


@dataclass(frozen=True)
class Number:
    """One number of a line; ``digit`` : what one more in its last digit is. ``label`` : the words beside it."""

    value: float
    digit: float
    label: str
    whole: bool
    counts: bool = False
    """Which line this is, such as a step: text rather than a value."""

    def __str__(self) -> str:
        """Return it as it would be printed again."""
        return f"{self.value:.0f}" if self.whole and math.isfinite(self.value) else f"{self.value:.6g}"


@dataclass(frozen=True)
class Line:
    """One printed line. ``place`` : 1 for the first. ``words`` : its text without its numbers."""

    place: int
    words: str
    numbers: tuple[Number, ...]

    @property
    def counters(self) -> tuple[float, ...]:
        """The numbers that tell which line this is."""
        return tuple(number.value for number in self.numbers if number.counts)

    def led_by_a_counter(self) -> Line:
        """Return the line, its first number, and the total after a slash, taken as what counts the lines."""
        led = 2 if OF_A_TOTAL.match(self.words) else 1
        return replace(self, numbers=(*(replace(n, counts=True) for n in self.numbers[:led]), *self.numbers[led:]))


def read_lines(output: str) -> Iterator[Line]:
    """Yield the whole lines of a program's output that hold numbers; the machine's own are taken out."""
    header: tuple[str, ...] = ()
    of_library = False
    for place, text in enumerate(output.replace("\r\n", "\n").split("\n")[:-1][:MOST_LINES], start=1):
        set_in = of_library and text[:1].isspace()
        of_library = OF_LIBRARIES.search(text) is not None
        if of_library or set_in:
            continue
        for part in text.split("\r"):
            line = _line(place, _past_bar(ESCAPE.sub("", part[:LONGEST])), header)
            if line.numbers:
                yield line
            elif titles := tuple(word for word in line.words.split() if WORD.search(word)):
                header = titles


def _past_bar(text: str) -> str:
    bar = PROGRESS_BAR.search(text)
    return text[bar.end() :] if bar else text


def _line(place: int, text: str, header: tuple[str, ...]) -> Line:
    """Return one line; ``header`` : titles of the columns, if it is a row of a table."""
    text = OF_THE_MOMENT.sub("~", text.replace("#", " "))  # below it stands for a number
    found = list(NUMBER.finditer(text))
    ends = [0, *(match.end() for match in found)]
    gaps = [text[end : match.start()] for end, match in zip(ends, found, strict=False)] + [text[ends[-1] :]]
    titles = header if len(header) == len(found) and not WORD.search("".join(gaps)) else ()
    words = [gaps[0]]
    numbers: list[Number] = []
    beside: list[str] = []
    counts = by_words = False
    for column, match in enumerate(found):
        gap = gaps[column]
        if named := WORD.findall(titles[column]) if titles else _words_before(gaps, column):
            beside, counts, by_words = named, COUNTER.fullmatch(named[-1]) is not None, _of_the_machine(named[::-1])
        elif (not column or BREAK.search(gap)) and (named := _words_after(gaps, column)):
            beside, counts, by_words = named, COUNTER.fullmatch(named[0]) is not None, _of_the_machine(named)
        else:  # of a list, or a total: 3/100
            counts = counts and gap.strip() == "/"
            if "|" in gap:
                beside, by_words = [], False
        of_machine = (
            UNIT.match(gaps[column + 1])
            or by_words
            or (match.group().isdigit() and CALLS.search(" ".join(beside)))
            or (TIME_FOLLOWS.search(gap) and "." in match.group())
        )
        words += ["~" if of_machine else "#", gaps[column + 1]]
        if not of_machine:
            numbers.append(_number(match.group(), " ".join(beside), counts=counts))
    return Line(place, " ".join("".join(words).split()), tuple(numbers))


def _of_the_machine(nearest_first: list[str]) -> bool:
    """Return whether words beside a number say that it is the machine's."""
    said = [word for word in nearest_first if OF_A_RESULT.fullmatch(word) or OF_THE_MACHINE.fullmatch(word)]
    if said:
        return OF_A_RESULT.fullmatch(said[0]) is None or MEASURED.search(" ".join(nearest_first[::-1])) is not None
    # "rate" stands behind what it is one of
    words = sorted(nearest_first, key=lambda word: word.lower() in ("rate", "rates"))
    names = (word for word in words if not (NO_NAME.fullmatch(word) or COUNTER.fullmatch(word)))
    return WHERE_OR_HOW.fullmatch(next(names, "")) is not None


def _words_before(gaps: list[str], column: int) -> list[str]:
    gap = gaps[column]
    unit = UNIT.match(gap) if column else None
    return WORD.findall(BREAK.split(gap[unit.end() if unit else 0 :].rstrip(" ([{"))[-1])[-NEAR:]


def _words_after(gaps: list[str], column: int) -> list[str]:
    return WORD.findall(BREAK.split(gaps[column + 1])[0])[:NEAR]


def _number(text: str, label: str, *, counts: bool) -> Number:
    digits, _, exponent = text.lower().replace(",", "").partition("e")
    value = float(text.replace(",", ""))
    point = digits.partition(".")
    # "1." is as exact as the numbers beside it in an array
    digit = 0.0 if point[1] and not point[2] else 10.0 ** (int(exponent or 0) - len(point[2]))
    whole = not point[1] and not exponent
    return Number(value, digit if math.isfinite(value) else 0.0, label, whole, counts)
