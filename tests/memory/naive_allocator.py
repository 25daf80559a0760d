"""A second, slow caching allocator, written from PyTorch's documentation and comments alone.

Every decision looks at all blocks of all segments, nothing is indexed, nothing is shared with the
package. It also writes what a snapshot holds, as plain dicts.
"""

import math

KIB, MIB = 1024, 1024 * 1024
INFINITE = 1 << 60


class NaiveOomError(Exception):
    pass


class Piece:
    def __init__(self, addr, size, use="free", stamp=0):
        self.addr, self.size, self.use, self.stamp = addr, size, use, stamp
        self.asked = 0


class Segment:
    def __init__(self, pieces, stream, small, page=0):
        self.pieces, self.stream, self.small, self.page = pieces, stream, small, page
        self.base = pieces[0].addr


class NaiveAllocator:
    def __init__(self, max_split=INFINITE, rounding=20 * MIB, divisions=0, expandable=False, gc=0.0, limit=INFINITE):
        self.max_split, self.rounding, self.divisions = max_split, rounding, divisions
        self.expandable, self.gc, self.limit = expandable, gc, limit
        self.segments = []
        self.log = []
        self.searches = {True: 0, False: 0}
        self.where = 16 * MIB
        self.range_at = 1 << 50
        self.calls = [0, 0]
        self.peak = 0
        self.retries = 0
        self.stacks = False
        self.caller = []

    # -- sizes

    def rounded(self, size):
        if size < 512:
            return 512
        if self.divisions > 1 and size > 512 * self.divisions:
            low = 2 ** int(math.log2(size))
            if low > size:
                low //= 2
            marks = [low + low * k // self.divisions for k in range(self.divisions + 1)]
            return min(mark for mark in marks if mark >= size)
        return (size + 511) // 512 * 512

    @staticmethod
    def segment_bytes(size):
        if size <= MIB:
            return 2 * MIB
        return 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)

    # -- views

    @property
    def reserved(self):
        return sum(p.size for s in self.segments for p in s.pieces if p.use != "hole")

    def cached(self, stream, small):
        found = [
            (piece.size, piece.addr, segment, piece)
            for segment in self.segments
            if segment.stream == stream and segment.small == small
            for piece in segment.pieces
            if piece.use == "free"
        ]
        return sorted(found, key=lambda one: one[:2])

    def write(self, action, addr, size, stream):
        self.log.append(
            {
                "action": action,
                "addr": addr,
                "size": size,
                "stream": stream,
                "time_us": 10 * len(self.log),
                "frames": self.caller,
            }
        )

    # -- a program's calls

    def called_from(self, function):
        """Have the next entries tell that they come from this call, as recorded stacks do."""
        if self.stacks:
            self.caller = [{"filename": "train.py", "line": len(self.log) + 1, "name": function}]

    def malloc(self, asked, stream=0):
        self.called_from("forward")
        size = self.rounded(asked)
        small = size <= MIB
        if self.gc and self.limit < INFINITE:
            self.searches[small] += 1
        segment, piece = self.search(size, stream, small) or (None, None)
        if piece is None:
            if self.gc and self.limit < INFINITE:
                self.collect()
            piece = self.fresh(size, stream, small)
            limited = self.max_split < INFINITE
            if piece is None and limited and self.release_oversize(size, stream, small):
                piece = self.fresh(size, stream, small)
            if piece is None:
                self.retries += 1
                self.release_cached()
                piece = self.fresh(size, stream, small)
            if piece is None:
                self.log.append(
                    {
                        "action": "oom",
                        "addr": 0,
                        "device_free": self.limit - self.reserved,
                        "size": size,
                        "stream": stream,
                        "time_us": 10 * len(self.log),
                        "frames": [],
                    }
                )
                raise NaiveOomError
        segment = next(s for s in self.segments if piece in s.pieces)
        rest = piece.size - size
        fine = small or self.expandable
        split = rest >= 512 if fine else rest > MIB and size < self.max_split
        if split:
            at = segment.pieces.index(piece)
            other = Piece(piece.addr + size, rest, stamp=self.searches[small])
            segment.pieces.insert(at + 1, other)
            piece.size = size
        piece.use, piece.asked = "allocated", asked
        self.write("alloc", piece.addr, asked, stream)
        self.peak = max(self.peak, self.reserved)
        return piece

    def free(self, piece, waits=False):
        segment = next(s for s in self.segments if piece in s.pieces)
        self.write("free_requested", piece.addr, piece.asked, segment.stream)
        piece.use = "waiting"
        if not waits:
            self.complete(piece)

    def complete(self, piece):
        if piece.use != "waiting":
            return
        segment = next(s for s in self.segments if piece in s.pieces)
        self.write("free_completed", piece.addr, piece.asked, segment.stream)
        piece.use, piece.stamp = "free", self.searches[segment.small]
        self.merge(segment, "free", piece)

    def empty_cache(self):
        self.called_from("empty_cache")
        self.release_cached()

    def release_cached(self):
        for segment in list(self.segments):
            for piece in list(segment.pieces):
                self.complete(piece)
        whole = [
            (not s.small, s.stream, s.pieces[0].size, s.base, s)
            for s in self.segments
            if not s.page and len(s.pieces) == 1 and s.pieces[0].use == "free"
        ]
        for one in sorted(whole, key=lambda one: one[:4]):
            self.drop(one[4])
        for segment in [s for s in self.segments if s.page]:
            for piece in [p for p in segment.pieces if p.use == "free"]:
                self.unmap(segment, piece)
            if all(p.use == "hole" for p in segment.pieces):
                self.segments.remove(segment)

    # -- inside

    def merge(self, segment, use, newest=None):
        """Join neighbours of one kind; the newest keeps its identity."""
        joined = []
        for piece in segment.pieces:
            if joined and joined[-1].use == piece.use == use:
                keep, gone = joined[-1], piece
                size, addr = keep.size + gone.size, keep.addr
                if gone is newest:
                    keep = gone
                keep.addr, keep.size = addr, size
                joined[-1] = keep
            else:
                joined.append(piece)
        segment.pieces = joined

    def search(self, size, stream, small):
        fits = [one for one in self.cached(stream, small) if one[0] >= size]
        if not fits:
            return None
        chosen = 0
        if self.expandable:

            def room(one):
                _, _, segment, piece = one
                at = segment.pieces.index(piece)
                after = segment.pieces[at + 1 : at + 2]
                return piece.size + (after[0].size if after and after[0].use == "hole" else 0)

            while fits[chosen][2].page and chosen + 1 < len(fits) and room(fits[chosen + 1]) < room(fits[chosen]):
                chosen += 1
        _, _, segment, piece = fits[chosen]
        if size < self.max_split and piece.size >= self.max_split:
            return None
        if size >= self.max_split and piece.size >= size + self.rounding:
            return None
        return segment, piece

    def fresh(self, size, stream, small):
        if self.expandable:
            return self.expand(size, stream, small)
        wanted = self.segment_bytes(size)
        if self.reserved + wanted > self.limit:
            return None
        piece = Piece(self.where, wanted)
        self.where += wanted
        self.segments.append(Segment([piece], stream, small))
        self.calls[0] += 1
        self.write("segment_alloc", piece.addr, wanted, stream)
        return piece

    def expand(self, size, stream, small):
        page = 2 * MIB if small else 20 * MIB
        mine = [s for s in self.segments if s.page and (s.stream, s.small) == (stream, small)]
        if not mine:
            hole = Piece(self.range_at, (1 << 46) // page * page, "hole")
            self.range_at += 1 << 47
            mine = [Segment([hole], stream, small, page)]
            self.segments += mine
        (segment,) = mine
        # the lowest run of free and unmapped pieces, with an unmapped one in it, that is enough
        uses = [piece.use for piece in segment.pieces] + ["end"]
        for at, use in enumerate(uses):
            if use == "hole" or (use == "free" and uses[at + 1] == "hole"):
                room = 0
                for piece in segment.pieces[at:]:
                    if piece.use not in ("free", "hole"):
                        break
                    room += piece.size
                if room >= size:
                    break
        while True:
            piece = segment.pieces[at]
            if piece.use == "free" and piece.size >= size:
                return piece
            hole_at = at if piece.use == "hole" else at + 1
            hole = segment.pieces[hole_at]
            assert hole.use == "hole"
            lacking = size - (piece.size if piece.use == "free" else 0)
            wanted = (min(lacking, hole.size) + page - 1) // page * page
            if self.reserved + wanted > self.limit:
                return None
            mapped = Piece(hole.addr, wanted)
            hole.addr, hole.size = hole.addr + wanted, hole.size - wanted
            segment.pieces.insert(hole_at, mapped)
            if not hole.size:
                segment.pieces.remove(hole)
            self.calls[0] += 1
            self.write("segment_map", mapped.addr, wanted, stream)
            self.merge(segment, "free", mapped)

    def unmap(self, segment, piece):
        page, base = segment.page, segment.base
        start = base + (piece.addr - base + page - 1) // page * page
        end = base + (piece.addr + piece.size - base) // page * page
        if end <= start:
            return
        at = segment.pieces.index(piece)
        parts = [Piece(start, end - start, "hole")]
        if start > piece.addr:
            parts.insert(0, Piece(piece.addr, start - piece.addr))
        if end < piece.addr + piece.size:
            parts.append(Piece(end, piece.addr + piece.size - end))
        segment.pieces[at : at + 1] = parts
        self.calls[1] += 1
        self.write("segment_unmap", start, end - start, segment.stream)
        self.merge(segment, "hole")

    def drop(self, segment):
        self.segments.remove(segment)
        self.calls[1] += 1
        self.write("segment_free", segment.base, segment.pieces[0].size, segment.stream)

    def release_oversize(self, size, stream, small):
        wanted = max(size, self.max_split)
        cached = [one for one in self.cached(stream, small) if not one[2].page]
        large = [one for one in cached if one[0] >= wanted]
        if large:
            self.drop(large[0][2])
            return True
        released = 0
        for bytes_, _, segment, _ in reversed(cached):
            if released >= wanted or bytes_ < self.max_split:
                break
            released += bytes_
            self.drop(segment)
        return released >= wanted

    def collect(self):
        threshold = int(self.gc * self.limit)
        excess = self.reserved - threshold
        gained = 0
        now = self.searches[False]
        while excess > 0 and gained < excess:
            whole = [
                s
                for s in self.segments
                if not s.small and not s.page and len(s.pieces) == 1 and s.pieces[0].use == "free"
            ]
            if not whole:
                return
            mean = sum(now - s.pieces[0].stamp for s in whole) / len(whole)
            old = [s for s in whole if now - s.pieces[0].stamp >= mean]
            for segment in old:
                gained += segment.pieces[0].size
                self.drop(segment)

    # -- what a snapshot holds

    def snapshot(self, n_forgotten=0, settings=None):
        segments = []
        for segment in self.segments:
            runs = [[]]
            for piece in segment.pieces:
                if piece.use == "hole":
                    runs.append([])
                else:
                    runs[-1].append(piece)
            segments += [self.told(segment, run) for run in runs if run]
        conf = []
        if self.max_split < INFINITE:
            conf.append(f"max_split_size_mb:{self.max_split // MIB}")
        if self.rounding != 20 * MIB:
            conf.append(f"max_non_split_rounding_mb:{self.rounding // MIB}")
        return {
            "segments": sorted(segments, key=lambda one: one["address"]),
            "device_traces": [self.log[n_forgotten:]],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": ",".join(conf),
                "max_split_size": self.max_split if self.max_split < INFINITE else -1,
                "garbage_collection_threshold": self.gc,
                "expandable_segments": self.expandable,
                "roundup_power2_divisions": {str(1 << i): self.divisions for i in range(16)},
            },
            "external_annotations": [],
        }

    @staticmethod
    def told(segment, run):
        states = {"allocated": "active_allocated", "waiting": "active_awaiting_free", "free": "inactive"}
        return {
            "device": 0,
            "address": run[0].addr,
            "total_size": sum(p.size for p in run),
            "allocated_size": sum(p.size for p in run if p.use == "allocated"),
            "active_size": sum(p.size for p in run if p.use != "free"),
            "requested_size": 0,
            "stream": segment.stream,
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": bool(segment.page),
            "frames": [],
            "blocks": [
                {"address": p.addr, "size": p.size, "requested_size": p.asked, "state": states[p.use], "frames": []}
                for p in run
            ],
        }
