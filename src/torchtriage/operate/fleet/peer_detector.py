"""One device against its peers, and one version across devices.

A device's requests of a second give a level: the mean of what they took in logarithms, less what their sizes take
in the whole fleet. What all devices have in common (load by the hour, a slow network) is the median over them and is
taken off; what is left, less what is usual for the device, goes to two charts whose scales are learned. A version is
compared with another by the devices that ran both, or by the devices of each.

Its state is data, so that whoever feeds it can store it: constant memory per device, no clock, no input or output.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from torchtriage.core.stats.difference import student_tail
from torchtriage.core.units import format_span_s
from torchtriage.operate.monitor.batch_sink import RequestRecord

KINDS = ("failing-device", "failing-version", "silent-device", "slow-device", "slow-version")  # of alarms
WINDOW_S = 1.0
FEWEST = 10  # requests that make a level; a device with fewer in a window waits for the next
PEERS = 5  # devices from which their median is a norm
CUT = 2.0  # logarithm at which one request's deviation is cut: 7 times as long
WARM_UP = 30  # levels of a new device or version, before it is compared with its own past
MEMORY = 600  # levels over which the usual is learned: ten minutes
SPREAD_MEMORY = 2_000
# weight of the newest level in each chart, and what its mean must reach in any case: 40 %, 15 %
CHARTS = ((1 / 3, math.log(1.40)), (1 / 20, math.log(1.15)))
LIMIT = 5.0  # learned standard deviations that a chart's mean may stray
YOUNG = 2.0  # while little was seen limits are wider, by this over the root of the levels seen
UNUSUAL = 0.6  # share of a limit from which little is learned
NEW_NORMAL = 3_600  # levels of an alarm after which it is the new normal: an hour
BORN_SLOW = math.log(1.5)  # a new device must stand so far from its peers, and
BORN_SPREADS = 6.0  # so many of their median deviations
FAIL_SPAN = 10  # windows whose failures are counted together
FAIL_CHANCE = 1e-10
FAIL_FEWEST = 5
FAIL_WELL = 30  # windows of a device that does not fail too often any more, after which that is over
FAIL_LEAST = 2e-3  # share of failures that is usual in any case
SILENT_S, SILENT_GAPS = 30.0, 3.0  # silent for so long, and for so many of the longest gaps before
FORGET_S = 3_600.0  # a device that is silent for so long counts as one of the fleet no more; and so does a version
RETURN_S = 600.0  # after the way here was broken, devices have so long to come back
GONE_S = 86_400.0  # and after so long its alarm is taken back
UPDATE_S, UPDATE = 30.0, 1.1  # an alarm that is on is told again so much later at least, where it changed by so much
VERSION_EVERY = 15  # windows between two comparisons of versions
VERSION_LEVELS = 30  # windows a device must have of a version: half a minute
VERSION_MATTERS = math.log(1.10)
VERSION_FAILS = 0.01  # share of failures by which a version must be worse
VERSION_CHANCE = 1e-5
RECENT = 600  # windows after which a level of another version says nothing about now
MAX_CELLS = 20_000  # of device, model and version; further ones are not judged
MAX_SIZES = 512
SINCE, BORN = "than before, compared with its peers", "than its peers since it appeared"


Key = tuple[str, str, str, str, str]  # of an alarm: kind, device, model, version, the other one


class PeerAlarm(NamedTuple):
    """Something is unlike the rest. ``device`` : empty where it is a version on many.

    It comes again while it is on and changes, and last when it has ``ended``, then with the largest ``ratio`` it had.
    ``since_s`` : when it began. ``other`` : the version that one is compared with. ``lasting`` : it may be the new
    normal, which is what it is compared with from now on.
    """

    kind: str
    device: str
    model: str
    version: str
    at_s: float
    message: str
    evidence: float
    ratio: float
    """Of times, or the share of failures."""
    since_s: float = 0.0
    other: str = ""
    ended: bool = False
    lasting: bool = False


class Episode(msgspec.Struct):
    """An alarm that is on."""

    kind: str
    device: str
    model: str
    version: str
    other: str
    since_s: float
    told: float  # the ratio that was told last, and when
    told_s: float
    largest: float

    @property
    def key(self) -> Key:
        """What it is of."""
        return (self.kind, self.device, self.model, self.version, self.other)


class Cell(msgspec.Struct):
    """A version of a model on one device."""

    device: str
    model: str
    version: str
    born: int  # the window of its first request
    asked: int = 0  # and of the newest
    n: int = 0  # in the window that is open
    total: float = 0.0
    failed: int = 0
    level: float = 0.0  # usual for the device, beside its peers
    raw: float = 0.0  # of the last minute, not beside its peers: to compare versions
    fail_share: float = 0.0  # of its last minutes
    n_levels: int = 0
    newest: int = 0  # window of the last level
    n_judged: int = 0  # windows, also those in which every request failed
    means: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(CHARTS))
    spreads: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(CHARTS))  # mean squares of the means
    on: int = 0  # levels since an alarm of it began, 0 without
    ratio: float = 1.0
    fails: list[tuple[int, int]] = []  # of the last windows: failed, all
    failing: bool = False
    well: int = 0  # windows since it failed too often
    before: float | None = None  # the level before an alarm that lasts
    born_slow: bool = False

    def __post_init__(self) -> None:
        """Fill in what an earlier release did not store."""
        self.asked = max(self.asked, self.newest, self.born)
        self.n_judged = max(self.n_judged, self.n_levels)


class Contact(msgspec.Struct):
    """When a device was heard of."""

    last_s: float
    longest_s: float = 0.0
    silent: bool = False


class PeerState(msgspec.Struct):
    """All that a detector knows."""

    window: int = -1
    cells: list[Cell] = []
    contacts: dict[str, Contact] = {}
    # model: size's bucket: weight, level, and number and sum of the window that is open
    sizes: dict[str, dict[int, list[float]]] = {}
    on: list[Episode] = []
    broken_s: float | None = None  # when the way here seemed broken last


class PeerDetector:
    """Finds devices that are slow, fail or are silent, and versions that are slower or fail, in a fleet."""

    def __init__(self, state: PeerState | None = None) -> None:
        self.state = PeerState() if state is None else state
        self._cells = {(cell.device, cell.model, cell.version): cell for cell in self.state.cells}
        self._on = {episode.key: episode for episode in self.state.on}
        self._buckets: dict[int | None, int] = {None: -1}
        self.n_not_judged = 0  # records of cells beyond the most

    def snapshot(self) -> PeerState:
        """Return the state, to be stored."""
        self.state.cells, self.state.on = list(self._cells.values()), list(self._on.values())
        return self.state

    def cells(self) -> Iterable[Cell]:
        """Return what is known of each device, model and version."""
        return self._cells.values()

    def add(self, device: str, records: Sequence[RequestRecord], at_s: float) -> list[PeerAlarm]:
        """Take a device's records, which came at ``at_s``; return the alarms of the windows that have ended by then."""
        alarms = self.advance(at_s)
        contact = self.state.contacts.setdefault(device, Contact(at_s))
        gap_s = at_s - contact.last_s
        contact.longest_s = max(contact.longest_s * 0.999, 0.0 if contact.silent else gap_s)
        if contact.silent:
            alarms += self._over(("silent-device", device, "", "", ""), at_s)
        contact.last_s, contact.silent = max(at_s, contact.last_s), False
        cell: Cell | None = None
        levels: dict[int, list[float]] = {}
        usual = 0.0
        for record in records:
            if cell is None or record.version != cell.version or record.model != cell.model:
                cell = self._cell(device, record.model, record.version)
                if cell is None:
                    self.n_not_judged += 1
                    continue
                levels = self.state.sizes.setdefault(cell.model, {})
                usual = cell.level
            if record.error or record.nan:
                cell.failed += 1
                continue
            bucket = self._buckets.get(record.size)
            if bucket is None:
                bucket = self._bucket(record.size)
            took = math.log(record.duration_ns) if record.duration_ns > 0 else 0.0
            known = levels.get(bucket)
            if known is None:
                known = levels[bucket if len(levels) < MAX_SIZES else -1] = [0.0, took, 0, 0.0]
            known[2] += 1
            known[3] += took
            off = took - (known[1] if known[0] else known[3] / known[2]) - usual
            cell.n += 1
            cell.total += usual + (CUT if off > CUT else -CUT if off < -CUT else off)
        return alarms

    def advance(self, at_s: float) -> list[PeerAlarm]:
        """Return the alarms of the windows that have ended by ``at_s``."""
        window, state = int(at_s // WINDOW_S), self.state
        if window <= state.window:
            return []
        began = state.window < 0
        state.window = window
        if began:
            return []
        end_s = window * WINDOW_S
        alarms = [*self._silent(end_s), *self._judge(end_s)]
        if window % VERSION_EVERY == 0:
            alarms += self._versions(end_s)
        self._learn_sizes()
        return alarms

    # -- alarms ----------------------------------------------------------------------------

    def _is_on(self, alarm: PeerAlarm) -> Iterator[PeerAlarm]:
        """Yield an alarm that begins, or that has changed since it was told."""
        key = _key(alarm)
        episode = self._on.get(key)
        if episode is None:
            self._on[key] = Episode(*key, alarm.at_s, alarm.ratio, alarm.at_s, alarm.ratio)
            yield alarm._replace(since_s=alarm.at_s)
            return
        episode.largest = max(episode.largest, alarm.ratio)
        changed = max(alarm.ratio, episode.told) / max(min(alarm.ratio, episode.told), 1e-9)
        if alarm.lasting or (alarm.at_s - episode.told_s >= UPDATE_S and changed >= UPDATE):
            episode.told, episode.told_s = alarm.ratio, alarm.at_s
            text = f"{alarm.message}, for {format_span_s(alarm.at_s - episode.since_s)}"
            yield alarm._replace(since_s=episode.since_s, message=text)

    def _over(self, key: Key, at_s: float, why: str = "") -> Iterator[PeerAlarm]:
        episode = self._on.pop(key, None)
        if episode is None:
            return
        kind, device, model, version, other = key
        most = {"slow": f", peak {episode.largest - 1:+.0%}", "failing": f", peak {episode.largest:.1%}"}
        text = (
            f"{device or version}: {kind} over after {format_span_s(at_s - episode.since_s)}"
            f"{most.get(kind.partition('-')[0], '')}{why}"
        )
        yield PeerAlarm(kind, device, model, version, at_s, text, 0.0, episode.largest, episode.since_s, other, True)

    # -- cells and sizes -------------------------------------------------------------------

    def _cell(self, device: str, model: str, version: str) -> Cell | None:
        key = (device, model, version)
        cell = self._cells.get(key)
        if cell is None and len(self._cells) < MAX_CELLS:
            cell = self._cells[key] = Cell(*key, born=self.state.window)
        if cell is not None:
            cell.asked = self.state.window
        return cell

    def _bucket(self, size: int | None) -> int:
        bucket = round(4 * math.log2(size)) if size is not None and size > 0 else 0
        if len(self._buckets) < 10 * MAX_SIZES:
            self._buckets[size] = bucket
        return bucket

    def _learn_sizes(self) -> None:
        for levels in self.state.sizes.values():
            for known in levels.values():
                weight, level, n, total = known
                if n:
                    weight = weight * 0.995 + n
                    known[:] = weight, level + (total / n - level) * n / weight, 0, 0.0

    # -- devices ---------------------------------------------------------------------------

    def _judge(self, at_s: float) -> Iterator[PeerAlarm]:
        by_model: dict[str, list[Cell]] = defaultdict(list)
        for cell in self._cells.values():
            if cell.n + cell.failed >= FEWEST:
                by_model[cell.model].append(cell)
        for cells in by_model.values():
            failed, asked = (sum(numbers) for numbers in zip(*((c.failed, c.failed + c.n) for c in cells), strict=True))
            known = [cell for cell in cells if cell.n]
            every = _common(known)
            versions = {cell.version for cell in known}
            commons = {version: _common([c for c in known if c.version == version]) for version in versions}
            births = sorted(cell.level for cell in known if cell.n_levels >= WARM_UP)
            for cell in cells:
                yield from self._failing(cell, failed, asked, at_s)
                common = commons.get(cell.version)
                common = every if common is None else common
                if cell.n and common is not None:
                    yield from self._compare(cell, cell.total / cell.n - common, births, at_s)
                if cell.n:
                    cell.raw += (cell.total / cell.n - cell.raw) / min(cell.n_levels + 1, 60)
                    cell.n_levels += 1
                    cell.newest = self.state.window
                cell.n_judged += 1
                cell.n = cell.failed = 0
                cell.total = 0.0

    def _compare(self, cell: Cell, beside: float, births: list[float], at_s: float) -> Iterator[PeerAlarm]:
        """Compare a device's level beside its peers' with its own usual one."""
        off = beside - cell.level
        n = cell.n_levels
        if n < WARM_UP:
            cell.level += off / (n + 1)
            if n + 1 == WARM_UP and len(births) >= PEERS:
                middle = births[len(births) // 2]
                spread = median(abs(level - middle) for level in births)
                far = cell.level - middle
                if far > max(BORN_SLOW, BORN_SPREADS * spread):
                    cell.ratio, cell.born_slow = math.exp(far), True
                    yield from self._is_on(_slow(cell, far, far / BORN_SLOW, at_s, BORN))
            return
        wide = 1 + max(YOUNG / math.sqrt(n - WARM_UP + 1) - 0.2, 0.0)
        bounded = min(max(off, -CUT), CUT)
        evidence, mean = 0.0, 0.0
        for at, (weight, matters) in enumerate(CHARTS):
            cell.means[at] += weight * (bounded - cell.means[at])
            limit = max(matters, LIMIT * math.sqrt(cell.spreads[at])) * wide
            if abs(cell.means[at]) / limit > abs(evidence):
                evidence, mean = cell.means[at] / limit, cell.means[at]
        if cell.on:
            cell.on += 1
            cell.ratio = math.exp(cell.means[-1])
            slow = _slow(cell, cell.means[-1], evidence, at_s, SINCE)
            if cell.on > NEW_NORMAL:
                yield from self._is_on(slow._replace(lasting=True, message=f"{slow.message}, lasting"))
                cell.before = cell.level if cell.before is None else cell.before
                cell.level += cell.means[-1]
                cell.means = [0.0] * len(CHARTS)
                cell.on, cell.ratio = 0, 1.0
            elif evidence < 0.5:
                cell.on, cell.ratio = 0, 1.0
                if cell.before is None and not cell.born_slow:
                    yield from self._over(_key(slow), at_s)
            else:
                yield from self._is_on(slow)
            return
        yield from self._lasts(cell, births, at_s)
        rate = 1.0 if abs(evidence) < UNUSUAL else 0.1
        cell.level += rate * bounded / min(n, MEMORY)
        for at in range(len(CHARTS)):
            square = min(cell.means[at] ** 2, 4 * cell.spreads[at] + 1e-3)
            cell.spreads[at] += rate * (square - cell.spreads[at]) / min(n - WARM_UP + 1, SPREAD_MEMORY)
        if evidence >= 1:
            cell.on, cell.ratio = 1, math.exp(mean)
            yield from self._is_on(_slow(cell, mean, evidence, at_s, SINCE))

    def _lasts(self, cell: Cell, births: list[float], at_s: float) -> Iterator[PeerAlarm]:
        """Follow an alarm of a device that is compared with what it is now: since it appeared, or for an hour."""
        if cell.before is None and not (cell.born_slow and births):
            return
        norm, least, than = (
            (births[len(births) // 2], BORN_SLOW, BORN) if cell.before is None else (cell.before, CHARTS[-1][1], SINCE)
        )
        far = cell.level + cell.means[-1] - norm
        slow = _slow(cell, far, far / least, at_s, than)
        if far < least / 2:
            cell.before, cell.born_slow = None, False
            yield from self._over(_key(slow), at_s)
        else:
            yield from self._is_on(slow)

    def _failing(self, cell: Cell, failed: int, asked: int, at_s: float) -> Iterator[PeerAlarm]:
        own = cell.n + cell.failed
        cell.fails = [*cell.fails[1 - FAIL_SPAN :], (cell.failed, own)]
        lately, of = (sum(numbers) for numbers in zip(*cell.fails, strict=True))
        peers = (failed - cell.failed) / (asked - own) if asked > own else 0.0
        usual = max(FAIL_LEAST, 2 * cell.fail_share, 2 * peers)
        too_many = lately >= FAIL_FEWEST and _poisson_tail(lately, of * usual) < FAIL_CHANCE
        share = lately / of
        text = f"{cell.device}: {share:.0%} of its requests fail, {peers:.1%} of its peers'"
        alarm = PeerAlarm("failing-device", cell.device, cell.model, cell.version, at_s, text, share / usual, share)
        if too_many and (cell.failing or asked > own):
            cell.failing, cell.well = True, 0
            yield from self._is_on(alarm)
        elif cell.failing:
            cell.well += 1
            if cell.well >= FAIL_WELL:
                cell.failing = False
                yield from self._over(_key(alarm), at_s)
        if not too_many:
            cell.fail_share += (cell.failed / own - cell.fail_share) / min(cell.n_judged + 1, MEMORY)

    def _silent(self, at_s: float) -> Iterator[PeerAlarm]:
        contacts = self.state.contacts
        gone = [device for device, contact in contacts.items() if at_s - contact.last_s > GONE_S]
        for device in gone:
            del contacts[device]
            for key in [key for key in self._on if key[1] == device]:
                yield from self._over(key, at_s, ": it is forgotten")
        if gone or self.state.window % 600 == 0:
            # a version that its device has not run for so long goes; of a device that is silent all stay
            self._cells = {
                key: cell
                for key, cell in self._cells.items()
                if key[0] in contacts and contacts[key[0]].last_s - cell.asked * WINDOW_S < FORGET_S
            }
        quiet = {device: at_s - contact.last_s for device, contact in contacts.items()}
        away = [device for device in quiet if quiet[device] > SILENT_S + SILENT_GAPS * contacts[device].longest_s]
        heard = sum(quiet_s < SILENT_S for quiet_s in quiet.values())
        known = sum(quiet_s < FORGET_S for quiet_s in quiet.values())
        least = max(known / 2, 1)
        if known - sum(quiet[device] < FORGET_S for device in away) < least:
            self.state.broken_s = at_s
        returning = self.state.broken_s is not None and at_s - self.state.broken_s < RETURN_S
        if heard < least or returning:
            return  # the way here is broken, not one device
        for device in away:
            if not contacts[device].silent:
                contacts[device].silent = True
                others = f"{heard} of {len(quiet)} devices are sending"
                text = f"{device}: has sent nothing for {quiet[device]:.0f} s, while {others}"
                yield from self._is_on(PeerAlarm("silent-device", device, "", "", at_s, text, 2.0, 1.0))

    # -- versions --------------------------------------------------------------------------

    def _versions(self, at_s: float) -> Iterator[PeerAlarm]:
        models: dict[str, dict[str, dict[str, Cell]]] = defaultdict(lambda: defaultdict(dict))
        for cell in self._cells.values():
            if cell.n_judged >= VERSION_LEVELS and self.state.window - cell.asked < RECENT:
                models[cell.model][cell.version][cell.device] = cell
        for key in [key for key in self._on if key[0] in ("slow-version", "failing-version")]:
            gone = [version for version in key[3:] if version not in models.get(key[2], {})]
            if gone:
                yield from self._over(key, at_s, f": {gone[0]} had no requests lately")
        for key in [key for key in self._on if key[0] in ("slow-device", "failing-device")]:
            known = self._cells.get(key[1:4])
            if known is None or self.state.window - known.asked >= RECENT:
                yield from self._over(key, at_s, f": {key[3] or 'it'} had no requests lately")
                if known is not None:
                    known.on, known.ratio = 0, 1.0
        for model, versions in models.items():
            born = {version: min(cell.born for cell in cells.values()) for version, cells in versions.items()}
            for new, newer in versions.items():
                for old, older in versions.items():
                    if new != old and born[new] >= born[old]:  # that an old one is slower is no news
                        yield from self._two_versions(model, (new, newer), (old, older), at_s)

    def _two_versions(
        self, model: str, new: tuple[str, dict[str, Cell]], old: tuple[str, dict[str, Cell]], at_s: float
    ) -> Iterator[PeerAlarm]:
        devices = f"on {len(new[1])} devices"
        cells, last = (new[1], old[1]), self.state.window - RECENT
        # a version that fails every request has no levels, and is compared by its failures alone
        levels = [
            {name: cell.raw for name, cell in known.items() if cell.n_levels >= VERSION_LEVELS and cell.newest > last}
            for known in cells
        ]
        took = _difference(*levels)
        failed = _difference(*({name: cell.fail_share for name, cell in known.items()} for known in cells))
        slower = f"{new[0]} takes {math.exp(took[0]) - 1:.0%} longer than {old[0]}, {devices}"
        worse = f"{failed[0]:.1%} more of {new[0]}'s requests fail than of {old[0]}'s, {devices}"
        for kind, (more, chance), matters, text, ratio in (
            ("slow-version", took, VERSION_MATTERS, slower, math.exp(took[0])),
            ("failing-version", failed, VERSION_FAILS, worse, failed[0]),
        ):
            alarm = PeerAlarm(kind, "", model, new[0], at_s, text, more / matters, ratio, 0.0, old[0])
            if _key(alarm) in self._on:
                yield from self._over(_key(alarm), at_s) if more < matters / 2 else self._is_on(alarm)
            elif more > matters and chance < VERSION_CHANCE:
                yield from self._is_on(alarm)


def _common(cells: Sequence[Cell]) -> float | None:
    # what all have in common in this window
    if len(cells) < PEERS:
        return None
    return median(cell.total / cell.n - cell.level for cell in cells)


def _key(alarm: PeerAlarm) -> Key:
    return (alarm.kind, alarm.device, alarm.model, alarm.version, alarm.other)


def _slow(cell: Cell, shift: float, evidence: float, at_s: float, than: str) -> PeerAlarm:
    text = f"{cell.device}: requests take {math.exp(shift) - 1:.0%} longer {than}"
    return PeerAlarm("slow-device", cell.device, cell.model, cell.version, at_s, text, evidence, math.exp(shift))


def _poisson_tail(k: int, expected: float) -> float:
    """Return the chance of ``k`` or more where so many are expected; above it, 1."""
    if k <= expected:
        return 1.0
    # the first term and the ratio of the next bound the sum
    log_first = k * math.log(expected) - expected - math.lgamma(k + 1)
    return min(math.exp(log_first) / (1 - expected / (k + 1)), 1.0)


def _difference(new: dict[str, float], old: dict[str, float]) -> tuple[float, float]:
    """Return by how much more the new has, and the chance of that without a difference."""
    both = new.keys() & old.keys()
    if len(both) >= PEERS:
        values = [new[device] - old[device] for device in both]
        return _mean_and_chance(values, 0.0, len(values) - 1)
    a, b = list(new.values()), list(old.values())
    if min(len(a), len(b)) < PEERS:
        return 0.0, 1.0
    mean = sum(b) / len(b)
    error = sum((value - mean) ** 2 for value in b) / (len(b) - 1) / len(b)
    return _mean_and_chance([value - mean for value in a], error, min(len(a), len(b)) - 1)


def _mean_and_chance(values: Sequence[float], other_error: float, freedom: int) -> tuple[float, float]:
    mean = sum(values) / len(values)
    error = sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values) + other_error
    return mean, student_tail(mean / math.sqrt(error + 1e-12), freedom)
