//! Events to columns: one pass over the text, one row per call.
//!
//! What a text means is defined by the Python engine. This one takes only what is written the way
//! profilers write it, gives exactly the same columns for it, and leaves every chunk that holds
//! anything else, whole and without a trace, to the other.

use std::sync::Arc;

use crate::dict::Dict;
use crate::shape::{Action, Place, Shapes};
use crate::text::{
    at, colon, expect, number, skip_gap, string, unescape, value, Found, Kind, Number, Odd, Span,
    PADDING,
};

/// How the arguments of a category become columns; the numbers are `Group`'s in Python.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Calls = 0,
    Frames = 1,
    Ops = 2,
    Devices = 3,
}

/// Events that become rows or say something else we keep; the others are counted.
const ROWLESS: &[u8] = b"stfCbneSTpFPNODVvRc(),";
const MEMORY: &[u8] = b"[memory]";
/// External ids are kept as so many below this, and larger ones are damage.
const BELOW: i64 = -(1 << 62);
const MAX_EXTERNAL: i64 = 1 << 40;

const NO_DUR_NS: i64 = -1000;
/// Times beyond are damage.
const LARGEST_NS: i128 = 1 << 61;
/// Doubles hold three decimals of a microsecond below this, and not beyond.
const EXACT_BELOW_US: u64 = 1 << 43;
/// No real event comes near this; the other engine gives up on those beyond twice of it.
const MAX_EVENT_BYTES: usize = 8 << 20;
/// The column's type holds few more; files with so many categories are not worth speed.
const MAX_CATEGORIES: usize = 32_000;

// arguments that are numbers, in the order in which the caller names them
const CORRELATION: usize = 0;
const BYTES: usize = 1;
const STREAM: usize = 2;
const DEVICE: usize = 3;
const PYTHON_ID: usize = 4;
const PYTHON_PARENT: usize = 5;
const SEQUENCE: usize = 6;
const FWD_THREAD: usize = 7;
const MEMORY_BYTES: usize = 8; // and the five behind it
const EXTERNAL: usize = 14;
const N_NUMBERS: usize = 15;
// arguments that are kept as written: the fields of `Detail`, in their order
const DIMS: usize = 15;
const CONCRETE: usize = 17;
const GRID: usize = 19;
const COLLECTIVE: usize = 21;
const NELEMS: usize = 22;
const DTYPE: usize = 23;
/// More of a collective, only kept where that has a name.
const MORE: usize = 24;
const N_SLOTS: usize = 32;

/// What the caller says of its columns, so that `event_types.py` stays the one place to say it.
pub struct Schema {
    /// How the arguments of a category are kept, where not as calls' are.
    groups: Vec<(Vec<u8>, Group)>,
    /// The arguments that are kept: numbers, then details.
    keys: Vec<Vec<u8>>,
}

impl Schema {
    /// Read entries that are separated by zero bytes: `c`, a group's digit and a category; `n` and
    /// the key of a number; `d` and the key of a detail.
    pub fn read(text: &[u8]) -> Option<Schema> {
        let mut schema = Schema { groups: Vec::new(), keys: Vec::new() };
        for entry in text.split(|&byte| byte == 0) {
            let (&kind, rest) = entry.split_first()?;
            match kind {
                b'c' => {
                    let (&digit, category) = rest.split_first()?;
                    let group = match digit {
                        b'0' => Group::Calls,
                        b'1' => Group::Frames,
                        b'2' => Group::Ops,
                        b'3' => Group::Devices,
                        _ => return None,
                    };
                    schema.groups.push((category.to_vec(), group));
                }
                b'n' if schema.keys.len() < N_NUMBERS => schema.keys.push(rest.to_vec()),
                b'd' if schema.keys.len() >= N_NUMBERS => schema.keys.push(rest.to_vec()),
                _ => return None,
            }
        }
        (MORE..=N_SLOTS).contains(&schema.keys.len()).then_some(schema)
    }

    /// What `core/trace/native.py` says, as it was when this was written: for measuring and testing.
    pub fn example() -> Schema {
        let numbers = "correlation,bytes,stream,device,Python id,Python parent id,Sequence number,\
                       Fwd thread id,Bytes,Addr,Total Allocated,Total Reserved,Device Type,Device Id,External id";
        let details = "Input Dims,Input type,Concrete Inputs,Input Strides,grid,block,\
                       Collective name,In msg nelems,dtype,Process Group Name,Process Group Ranks,Seq,Group size,\
                       Src Rank,Dst Rank";
        let groups = "1python_function,2cpu_op,2user_annotation,3kernel,3gpu_memcpy,3gpu_memset";
        let entries: Vec<String> = [('n', numbers), ('d', details), ('c', groups)]
            .iter()
            .flat_map(|(kind, list)| list.split(',').map(move |entry| format!("{kind}{entry}")))
            .collect();
        Schema::read(entries.join("\0").as_bytes()).expect("a good schema")
    }

    /// Return the slot of an argument, if it is kept.
    fn slot(&self, key: &[u8]) -> Option<usize> {
        self.keys.iter().position(|known| known == key)
    }
}

/// Text and sizes of everything found so far; also what to go back to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Totals {
    pub rows: u64,
    pub names: u64,
    pub cats: u64,
    pub lanes: u64,
    pub details: u64,
    pub memory: u64,
    pub marks: u64,
    pub labels: u64,
    pub label_order: u64,
    pub chunks: u64,
    pub n_no_dur: u64,
    pub n_negative: u64,
    pub phases: [u64; 128],
}

/// `B` and `E` events; `row` is -1 for the latter.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Mark {
    pub at_ns: i64,
    pub row: i64,
    pub lane: i64,
}

/// First row, place and size in the text.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Chunk {
    pub row: i64,
    pub offset: i64,
    pub size: i64,
}

#[derive(Default)]
pub struct Columns {
    pub start_ns: Vec<i64>,
    pub dur_ns: Vec<i64>,
    pub name: Vec<i32>,
    pub cat: Vec<i16>,
    pub lane: Vec<i32>,
    pub key: Vec<i64>,
    pub value: Vec<i64>,
    pub detail: Vec<i32>,
}

impl Columns {
    fn truncate(&mut self, n: usize) {
        self.start_ns.truncate(n);
        self.dur_ns.truncate(n);
        self.name.truncate(n);
        self.cat.truncate(n);
        self.lane.truncate(n);
        self.key.truncate(n);
        self.value.truncate(n);
        self.detail.truncate(n);
    }
}

/// A process, thread, device or stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Id {
    Number(i64),
    Text(Span),
}

impl PartialEq for Span {
    fn eq(&self, other: &Span) -> bool {
        self.start == other.start && self.end == other.end && self.kind == other.kind
    }
}

impl Eq for Span {}

const NO_ID: Id = Id::Text(Span { start: 0, end: 0, kind: Kind::Plain });

#[derive(Clone, Copy)]
struct Time {
    ns: i64,
    /// Beyond what a double holds exactly.
    large: bool,
    /// Finer than a nanosecond.
    fine: bool,
}

/// What is known of one event; `seen` and `has` say which parts of it are.
struct Event {
    phase: u8,
    name: Span,
    cat: Span,
    pid: Id,
    tid: Id,
    ts: Time,
    dur: Time,
    seen: u32,
}

// fields of an event
const NAME: u32 = 1 << 0;
const PHASE: u32 = 1 << 1;
const CAT: u32 = 1 << 2;
const PID: u32 = 1 << 3;
const TID: u32 = 1 << 4;
const TS: u32 = 1 << 5;
const DUR: u32 = 1 << 6;
const ARGS: u32 = 1 << 7;

/// The numbers among the arguments: `Ok` within 64 bits, otherwise how it is written.
#[derive(Clone, Copy)]
struct Given {
    number: i64,
    span: Span,
}

pub struct Scanner {
    pub columns: Columns,
    pub names: Dict,
    pub cats: Dict,
    pub lanes: Dict,
    pub details: Dict,
    pub memory: Vec<[i64; 7]>,
    pub marks: Vec<Mark>,
    /// Metadata events as written: files say the same things again and again.
    pub labels: Dict,
    pub label_order: Vec<i64>,
    pub chunks: Vec<Chunk>,
    n_rows: usize,
    n_no_dur: u64,
    n_negative: u64,
    phases: [u64; 128],
    schema: Arc<Schema>,
    shapes: Shapes,
    cat_groups: Vec<Group>,
    /// Lanes used lately, by their ids.
    recent: Vec<(bool, i64, i64, u32)>,
    given: [Given; N_SLOTS],
    has: u64,
    scratch: Vec<u8>,
    /// Of the current chunk.
    any_large: bool,
    any_fine: bool,
}

impl Scanner {
    pub fn new(schema: impl Into<Arc<Schema>>) -> Self {
        Scanner {
            columns: Columns::default(),
            names: Dict::default(),
            cats: Dict::default(),
            lanes: Dict::default(),
            details: Dict::default(),
            memory: Vec::new(),
            marks: Vec::new(),
            labels: Dict::default(),
            label_order: Vec::new(),
            chunks: Vec::new(),
            n_rows: 0,
            n_no_dur: 0,
            n_negative: 0,
            phases: [0; 128],
            schema: schema.into(),
            shapes: Shapes::default(),
            cat_groups: Vec::new(),
            recent: vec![(false, 0, 0, u32::MAX); 256],
            given: [Given { number: 0, span: Span::default() }; N_SLOTS],
            has: 0,
            scratch: Vec::new(),
            any_large: false,
            any_fine: false,
        }
    }

    pub fn totals(&self) -> Totals {
        Totals {
            rows: self.n_rows as u64,
            names: self.names.len() as u64,
            cats: self.cats.len() as u64,
            lanes: self.lanes.len() as u64,
            details: self.details.len() as u64,
            memory: self.memory.len() as u64,
            marks: self.marks.len() as u64,
            labels: self.labels.len() as u64,
            label_order: self.label_order.len() as u64,
            chunks: self.chunks.len() as u64,
            n_no_dur: self.n_no_dur,
            n_negative: self.n_negative,
            phases: self.phases,
        }
    }

    /// Forget everything found since.
    pub fn roll_back(&mut self, to: &Totals) {
        self.n_rows = to.rows as usize;
        self.columns.truncate(self.n_rows);
        self.names.truncate(to.names as usize);
        self.cats.truncate(to.cats as usize);
        self.cat_groups.truncate(to.cats as usize);
        if self.lanes.len() > to.lanes as usize {
            self.lanes.truncate(to.lanes as usize);
            self.recent.fill((false, 0, 0, u32::MAX));
        }
        self.details.truncate(to.details as usize);
        self.memory.truncate(to.memory as usize);
        self.marks.truncate(to.marks as usize);
        self.labels.truncate(to.labels as usize);
        self.label_order.truncate(to.label_order as usize);
        self.chunks.truncate(to.chunks as usize);
        self.n_no_dur = to.n_no_dur;
        self.n_negative = to.n_negative;
        self.phases = to.phases;
    }

    /// Read the chunks of a text; return how much of it they take.
    ///
    /// `text` ends with [`PADDING`] zeros and starts between two events, `offset` bytes into the
    /// document. A chunk ends with the first event that ends at or after a multiple of `step`, or
    /// with the text. Stops before a chunk that is for others: one that holds anything unusual, or
    /// that the text cuts short, or the last one of the list.
    pub fn scan(&mut self, text: &[u8], offset: i64, step: i64) -> usize {
        assert!(text.len() >= PADDING && text.len() < u32::MAX as usize && step > 0);
        let len = text.len() - PADDING;
        assert!(text[len..].iter().all(|&byte| byte == 0));
        let mut used = 0;
        while used < len {
            let before = self.totals();
            match self.chunk(text, len, used, offset, step) {
                Ok(end) => used = end,
                Err(Odd) => {
                    self.roll_back(&before);
                    break;
                }
            }
        }
        used
    }

    fn chunk(
        &mut self,
        text: &[u8],
        len: usize,
        start: usize,
        offset: i64,
        step: i64,
    ) -> Found<usize> {
        self.any_large = false;
        self.any_fine = false;
        let first_row = self.n_rows as i64;
        let boundary = ((offset + start as i64 - 1).div_euclid(step) + 1) * step - offset;
        let mut i = skip_gap(text, start);
        if at(text, i) == b',' {
            i = skip_gap(text, i + 1);
        }
        let first = i;
        loop {
            let begin = i;
            i = self.event(text, i)?;
            if i - begin > MAX_EVENT_BYTES {
                return Err(Odd);
            }
            let end = i;
            if end < len {
                i = expect(text, skip_gap(text, i), b',')?;
                i = skip_gap(text, i);
                if at(text, i) != b'{' {
                    return Err(Odd);
                }
            }
            if end == len || end as i64 > boundary {
                // beyond a double's reach, three decimals are exact and more are not
                if self.any_large && self.any_fine {
                    return Err(Odd);
                }
                self.chunks.push(Chunk {
                    row: first_row,
                    offset: offset + first as i64,
                    size: (end - first) as i64,
                });
                return Ok(end);
            }
        }
    }

    /// Read the event at `start`; return what follows it.
    #[inline(always)]
    fn event(&mut self, text: &[u8], start: usize) -> Found<usize> {
        const NO_TIME: Time = Time { ns: 0, large: false, fine: false };
        let mut event = Event {
            phase: 0,
            name: Span::default(),
            cat: Span::default(),
            pid: NO_ID,
            tid: NO_ID,
            ts: NO_TIME,
            dur: NO_TIME,
            seen: 0,
        };
        self.shapes.tidy();
        let mut node = Shapes::ROOT;
        let mut i = start;
        loop {
            let (action, at_value, next) = match self.shapes.follow(text, i, node) {
                Some(known) => known,
                None => self.step(text, i, node)?,
            };
            node = next;
            i = at_value;
            match action {
                Action::Name => (event.name, i) = string(text, expect(text, i, b'"')?)?,
                Action::Phase => {
                    event.phase = at(text, expect(text, i, b'"')?);
                    // a control character is no phase, so no end of text gets past this
                    if event.phase < b' ' || event.phase == b'\\' {
                        return Err(Odd);
                    }
                    i = expect(text, i + 2, b'"')?;
                }
                Action::Cat => (event.cat, i) = string(text, expect(text, i, b'"')?)?,
                Action::Pid => (event.pid, i) = identifier(text, i)?,
                Action::Tid => (event.tid, i) = identifier(text, i)?,
                Action::Ts => (event.ts, i) = time(text, i)?,
                Action::Dur => (event.dur, i) = time(text, i)?,
                Action::NoArgs => {
                    let (span, end) = value(text, i)?;
                    if span.kind != Kind::Null {
                        return Err(Odd);
                    }
                    i = end;
                }
                Action::Number(slot) => {
                    let given = &mut self.given[slot as usize % N_SLOTS];
                    if matches!(at(text, i), b'-' | b'0'..=b'9') {
                        let (found, end) = number(text, i)?;
                        given.span = Span { start: i as u32, end: end as u32, kind: Kind::Number };
                        given.number = integer(&found)?;
                        i = end;
                    } else {
                        (given.span, i) = value(text, i)?;
                    }
                }
                Action::Raw(slot) => {
                    (self.given[slot as usize % N_SLOTS].span, i) = value(text, i)?
                }
                Action::Skip => i = value(text, i)?.1,
                Action::End => break,
            }
        }
        let place = self.shapes.place(node);
        event.seen = place.seen;
        self.has = place.has;
        self.keep(text, &event, start, i)?;
        Ok(i)
    }

    /// Parse up to the next value and remember how.
    #[inline(never)]
    fn step(&mut self, text: &[u8], i: usize, node: usize) -> Found<(Action, usize, usize)> {
        let mut place = *self.shapes.place(node);
        let (action, end) = self.next_value(text, i, &mut place)?;
        if action != Action::End && at(text, end) == 0 {
            return Err(Odd); // cut short: no place for a value, and none to remember
        }
        Ok((action, end, self.shapes.learn(node, &text[i..end], action, place)))
    }

    /// Find the next value of an event; return what it is and where it stands.
    fn next_value(&self, text: &[u8], i: usize, place: &mut Place) -> Found<(Action, usize)> {
        let mut i = i;
        if place.at_start {
            place.at_start = false;
            i = skip_gap(text, expect(text, i, b'{')?);
            if let Some(found) = self.field(text, &mut i, place)? {
                return Ok((found, i));
            }
        }
        loop {
            i = skip_gap(text, i);
            match at(text, i) {
                b',' => {
                    i = skip_gap(text, i + 1);
                    if place.in_args {
                        return self.argument(text, i, place);
                    }
                    if let Some(found) = self.field(text, &mut i, place)? {
                        return Ok((found, i));
                    }
                }
                b'}' => {
                    i += 1;
                    if !place.in_args {
                        return Ok((Action::End, i));
                    }
                    place.in_args = false;
                }
                _ => return Err(Odd),
            }
        }
    }

    /// Read the key of a field and move to its value; None behind arguments without any.
    fn field(&self, text: &[u8], at_key: &mut usize, place: &mut Place) -> Found<Option<Action>> {
        let (key, i) = string(text, expect(text, *at_key, b'"')?)?;
        if key.kind != Kind::Plain {
            return Err(Odd);
        }
        let (field, action) = match key.of(text) {
            b"name" => (NAME, Action::Name),
            b"ph" => (PHASE, Action::Phase),
            b"cat" => (CAT, Action::Cat),
            b"pid" => (PID, Action::Pid),
            b"tid" => (TID, Action::Tid),
            b"ts" => (TS, Action::Ts),
            b"dur" => (DUR, Action::Dur),
            b"args" => (ARGS, Action::NoArgs),
            _ => (0, Action::Skip),
        };
        if place.seen & field != 0 {
            return Err(Odd);
        }
        place.seen |= field;
        let i = colon(text, i)?;
        *at_key = i;
        if field != ARGS || at(text, i) != b'{' {
            return Ok(Some(action));
        }
        let i = skip_gap(text, i + 1);
        if at(text, i) == b'}' {
            *at_key = i + 1;
            return Ok(None);
        }
        place.in_args = true;
        let (action, i) = self.argument(text, i, place)?;
        *at_key = i;
        Ok(Some(action))
    }

    /// Read the key of an argument; return what its value is and where that stands.
    fn argument(&self, text: &[u8], i: usize, place: &mut Place) -> Found<(Action, usize)> {
        let (key, i) = string(text, expect(text, i, b'"')?)?;
        if key.kind != Kind::Plain {
            return Err(Odd);
        }
        let i = colon(text, i)?;
        let Some(slot) = self.schema.slot(key.of(text)) else {
            return Ok((Action::Skip, i));
        };
        if place.has & 1 << slot != 0 {
            return Err(Odd);
        }
        place.has |= 1 << slot;
        // nearly every event has an External id, and few need it
        let is_number = slot < N_NUMBERS && slot != EXTERNAL;
        let action = if is_number { Action::Number(slot as u8) } else { Action::Raw(slot as u8) };
        Ok((action, i))
    }

    /// Take over what an event says.
    #[inline(always)]
    fn keep(&mut self, text: &[u8], event: &Event, start: usize, end: usize) -> Found<()> {
        let phase = event.phase;
        match phase {
            b'X' => self.row(text, event, false)?,
            b'i' | b'I' => {
                if self.is_memory(text, event.name)? {
                    self.record(text, event)?;
                } else {
                    self.row(text, event, true)?;
                }
            }
            b'B' => {
                let row = self.n_rows as i64;
                self.row(text, event, true)?;
                self.mark(text, event, row)?;
            }
            b'E' => self.mark(text, event, -1)?,
            b'M' => {
                let code = self.labels.code(&text[start..end]);
                self.label_order.push(i64::from(code));
            }
            _ if ROWLESS.contains(&phase) => {}
            _ => return Err(Odd),
        }
        self.phases[phase as usize & 127] += 1;
        Ok(())
    }

    /// Whether a name stands for that of allocator records.
    #[inline(always)]
    fn is_memory(&mut self, text: &[u8], name: Span) -> Found<bool> {
        if name.kind != Kind::Escaped {
            return Ok(name.kind == Kind::Plain && name.of(text) == MEMORY);
        }
        self.scratch.clear();
        unescape(name.of(text), &mut self.scratch)?;
        Ok(self.scratch == MEMORY)
    }

    #[inline(always)]
    fn start_ns(&mut self, event: &Event) -> Found<i64> {
        if event.seen & TS == 0 {
            return Err(Odd);
        }
        let time = event.ts;
        self.any_large |= time.large;
        self.any_fine |= time.fine;
        Ok(time.ns)
    }

    #[inline(always)]
    fn row(&mut self, text: &[u8], event: &Event, is_moment: bool) -> Found<()> {
        let start_ns = self.start_ns(event)?;
        let mut dur_ns = 0;
        if !is_moment {
            dur_ns = NO_DUR_NS;
            if event.seen & DUR != 0 {
                let time = event.dur;
                // a length of a hundred days is damage, and the sums are the other engine's
                if time.large {
                    return Err(Odd);
                }
                self.any_fine |= time.fine;
                dur_ns = time.ns;
            }
            if dur_ns < 0 {
                if dur_ns == NO_DUR_NS {
                    self.n_no_dur += 1;
                } else {
                    self.n_negative += 1;
                }
                dur_ns = 0;
            }
        }
        let name = self.name(text, event.name)?;
        let cat = self.category(text, event)?;
        let group = self.cat_groups[cat as usize];
        let (key, value, detail) = match group {
            Group::Frames => {
                (self.number(text, PYTHON_ID, -1)?, self.number(text, PYTHON_PARENT, -1)?, -1)
            }
            Group::Ops => (
                self.number(text, SEQUENCE, -1)?,
                self.number(text, FWD_THREAD, -1)?,
                self.op_detail(text),
            ),
            Group::Calls | Group::Devices => (
                self.launch_id(text)?,
                self.number(text, BYTES, -1)?,
                if group == Group::Devices { self.kernel_detail(text) } else { -1 },
            ),
        };
        let lane = if group == Group::Devices {
            let device = self.id(text, DEVICE, event.pid)?;
            let stream = self.id(text, STREAM, event.tid)?;
            self.lane(text, true, device, stream)?
        } else {
            self.lane(text, false, event.pid, event.tid)?
        };
        let columns = &mut self.columns;
        columns.start_ns.push(start_ns);
        columns.dur_ns.push(dur_ns);
        columns.name.push(name as i32);
        columns.cat.push(cat as i16);
        columns.lane.push(lane as i32);
        columns.key.push(key);
        columns.value.push(value);
        columns.detail.push(detail);
        self.n_rows += 1;
        Ok(())
    }

    /// Take an allocator record.
    fn record(&mut self, text: &[u8], event: &Event) -> Found<()> {
        let mut record = [self.start_ns(event)?, 0, 0, -1, -1, -1, -1];
        for (i, slot) in record[1..].iter_mut().enumerate() {
            *slot = self.number(text, MEMORY_BYTES + i, *slot)?;
        }
        self.memory.push(record);
        Ok(())
    }

    fn mark(&mut self, text: &[u8], event: &Event, row: i64) -> Found<()> {
        let at_ns = self.start_ns(event)?;
        let lane = i64::from(self.lane(text, false, event.pid, event.tid)?);
        self.marks.push(Mark { at_ns, row, lane });
        Ok(())
    }

    #[inline(always)]
    fn name(&mut self, text: &[u8], name: Span) -> Found<u32> {
        match name.kind {
            Kind::Escaped => {
                self.scratch.clear();
                unescape(name.of(text), &mut self.scratch)?;
                Ok(self.names.code(&self.scratch))
            }
            Kind::Plain => Ok(self.names.code(name.of(text))),
            _ => Ok(self.names.code(b"")),
        }
    }

    #[inline(always)]
    fn category(&mut self, text: &[u8], event: &Event) -> Found<u32> {
        if event.cat.kind == Kind::Escaped {
            return Err(Odd);
        }
        let mut cat = if event.cat.kind == Kind::Missing { b"" } else { event.cat.of(text) };
        if cat.is_empty() && event.phase | 0x20 == b'i' {
            cat = b"instant";
        }
        let code = self.cats.code(cat);
        if code as usize == self.cat_groups.len() {
            if self.cats.len() > MAX_CATEGORIES {
                return Err(Odd);
            }
            let known = self.schema.groups.iter().find(|(known, _)| known == cat);
            self.cat_groups.push(known.map_or(Group::Calls, |&(_, group)| group));
        }
        Ok(code)
    }

    /// Return a whole number among the arguments.
    #[inline(always)]
    fn number(&self, text: &[u8], which: usize, missing: i64) -> Found<i64> {
        if self.has & 1 << which == 0 {
            return Ok(missing);
        }
        let given = &self.given[which];
        match given.span.kind {
            Kind::Number => Ok(given.number),
            _ => written(given.span, text),
        }
    }

    /// The correlation; without one, the External id as `_launch_ids` has it.
    #[inline(always)]
    fn launch_id(&self, text: &[u8]) -> Found<i64> {
        let id = self.number(text, CORRELATION, -1)?;
        if id != -1 || self.has & 1 << EXTERNAL == 0 {
            return Ok(id);
        }
        let span = self.given[EXTERNAL].span;
        let external = match span.kind {
            Kind::Number => integer(&number(text, span.start as usize)?.0)?,
            _ => written(span, text)?,
        };
        Ok(if (1..MAX_EXTERNAL).contains(&external) { BELOW - external } else { id })
    }

    #[inline(always)]
    fn id(&self, text: &[u8], which: usize, missing: Id) -> Found<Id> {
        if self.has & 1 << which == 0 {
            return Ok(missing);
        }
        let given = &self.given[which];
        match given.span.kind {
            Kind::Number => identifier(text, given.span.start as usize).map(|(id, _)| id),
            Kind::Plain => Ok(Id::Text(given.span)),
            _ => Err(Odd),
        }
    }

    #[inline(always)]
    fn lane(&mut self, text: &[u8], on_device: bool, one: Id, two: Id) -> Found<u32> {
        let (Id::Number(first), Id::Number(second)) = (one, two) else {
            return Ok(self.new_lane(text, on_device, one, two));
        };
        let mix = (first as u64) << 20 ^ second as u64;
        let place = (mix.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize;
        let known = self.recent[place];
        if known.0 == on_device && known.1 == first && known.2 == second && known.3 != u32::MAX {
            return Ok(known.3);
        }
        let code = self.new_lane(text, on_device, one, two);
        self.recent[place] = (on_device, first, second, code);
        Ok(code)
    }

    #[inline(never)]
    fn new_lane(&mut self, text: &[u8], on_device: bool, one: Id, two: Id) -> u32 {
        self.scratch.clear();
        self.scratch.push(if on_device { b'd' } else { b't' });
        for id in [one, two] {
            match id {
                Id::Number(number) => {
                    self.scratch.push(b'n');
                    self.scratch.extend_from_slice(number.to_string().as_bytes());
                }
                Id::Text(span) => {
                    self.scratch.push(b's');
                    self.scratch.extend_from_slice(span.of(text));
                }
            }
            // JSON text without escapes holds no such byte
            self.scratch.push(0);
        }
        self.lanes.code(&self.scratch)
    }

    /// The code of an op's shapes and types, as `ColumnBuilder._op_detail` has it.
    #[inline(always)]
    fn op_detail(&mut self, text: &[u8]) -> i32 {
        if self.has & (1 << DIMS | 1 << CONCRETE) == 0 {
            return if self.has & 1 << COLLECTIVE == 0 { -1 } else { self.detail(text, false) };
        }
        self.detail(text, true)
    }

    /// The code of a launch's size and collective, as `ColumnBuilder._kernel_detail` has it.
    #[inline(always)]
    fn kernel_detail(&mut self, text: &[u8]) -> i32 {
        if self.has & (1 << GRID | 1 << COLLECTIVE) == 0 {
            return -1;
        }
        self.detail(text, false)
    }

    #[inline(always)]
    fn detail(&mut self, text: &[u8], of_shapes: bool) -> i32 {
        let mut wanted: u64 = 1 << COLLECTIVE | 1 << NELEMS | 1 << DTYPE;
        if of_shapes {
            wanted |= (1 << GRID) - (1 << DIMS);
        } else {
            wanted |= (1 << COLLECTIVE) - (1 << GRID);
        }
        if self.has & 1 << COLLECTIVE != 0 {
            wanted |= !0 << MORE;
        }
        wanted &= self.has;
        // each part and a zero byte behind it, which JSON text does not hold
        const ZEROS: [u8; N_SLOTS] = [0; N_SLOTS];
        self.scratch.clear();
        let mut next = DIMS;
        while wanted != 0 {
            let which = wanted.trailing_zeros() as usize % N_SLOTS;
            self.scratch.extend_from_slice(&ZEROS[..which - next]);
            self.scratch.extend_from_slice(self.given[which].span.raw(text));
            self.scratch.push(0);
            next = which + 1;
            wanted &= wanted - 1;
        }
        self.scratch.extend_from_slice(&ZEROS[..self.schema.keys.len() - next]);
        self.details.code(&self.scratch) as i32
    }
}

/// A whole number of 64 bits; -1 for a longer one, as the column has it.
#[inline(always)]
fn integer(number: &Number) -> Found<i64> {
    if number.n_decimals > 0 || number.has_exponent || number.n_whole > 1000 {
        return Err(Odd);
    }
    if number.n_whole > 18 {
        return Ok(longer(number));
    }
    let whole = number.whole as i64;
    Ok(if number.negative { -whole } else { whole })
}

#[cold]
fn longer(number: &Number) -> i64 {
    // nineteen digits fit the unsigned type, and more than that no signed one
    if number.n_whole > 19 {
        return -1;
    }
    let whole = i128::from(number.whole);
    i64::try_from(if number.negative { -whole } else { whole }).unwrap_or(-1)
}

/// A number where there should be one, written as text or not there.
#[cold]
fn written(span: Span, text: &[u8]) -> Found<i64> {
    match span.kind {
        Kind::Null => Ok(-1),
        Kind::Plain => {
            let digits = span.of(text);
            if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
                return Err(Odd);
            }
            Ok(digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
        }
        _ => Err(Odd),
    }
}

/// Read what names a process or thread.
#[inline(always)]
fn identifier(text: &[u8], i: usize) -> Found<(Id, usize)> {
    match at(text, i) {
        b'"' => {
            let (span, end) = string(text, i + 1)?;
            if span.kind != Kind::Plain {
                return Err(Odd);
            }
            Ok((Id::Text(span), end))
        }
        _ => {
            let (found, end) = number(text, i)?;
            let is_whole = found.n_decimals == 0 && !found.has_exponent && found.n_whole <= 18;
            if !is_whole || (found.negative && found.whole == 0) {
                return Err(Odd);
            }
            let whole = found.whole as i64;
            Ok((Id::Number(if found.negative { -whole } else { whole }), end))
        }
    }
}

/// Read microseconds as nanoseconds.
#[inline(always)]
fn time(text: &[u8], i: usize) -> Found<(Time, usize)> {
    let (found, end) = number(text, i)?;
    if found.n_whole > 18 {
        return Err(Odd);
    }
    let large = found.whole >= EXACT_BELOW_US - 1;
    if found.n_decimals > 3 || found.has_exponent {
        return Ok((fine(&text[i..end])?, end));
    }
    if !large {
        let ns = (found.whole * 1000) as i64 + i64::from(found.thousandths);
        let ns = if found.negative { -ns } else { ns };
        return Ok((Time { ns, large, fine: false }, end));
    }
    let ns = i128::from(found.whole) * 1000 + i128::from(found.thousandths);
    if ns >= LARGEST_NS {
        return Err(Odd);
    }
    let ns = if found.negative { -ns as i64 } else { ns as i64 };
    Ok((Time { ns, large, fine: false }, end))
}

/// Round what is finer than a nanosecond exactly as the other engine does: through a double.
#[cold]
fn fine(digits: &[u8]) -> Found<Time> {
    let digits = std::str::from_utf8(digits).map_err(|_| Odd)?;
    let us: f64 = digits.parse().map_err(|_| Odd)?;
    if us.abs().is_nan() || us.abs() >= EXACT_BELOW_US as f64 {
        return Err(Odd);
    }
    let whole_us = us.floor();
    let rest = (us - whole_us) * 1000.0;
    // half to even, as numpy rounds
    let down = rest.floor();
    let up = rest - down > 0.5 || (rest - down == 0.5 && down % 2.0 == 1.0);
    let ns = whole_us as i64 * 1000 + down as i64 + i64::from(up);
    Ok(Time { ns, large: false, fine: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(scanner: &mut Scanner, text: &str, offset: i64, step: i64) -> usize {
        let mut padded = text.as_bytes().to_vec();
        padded.resize(text.len() + PADDING, 0);
        scanner.scan(&padded, offset, step)
    }

    fn new() -> Scanner {
        Scanner::new(Schema::example())
    }

    const OP: &str = r#"{"ph": "X", "cat": "cpu_op", "name": "a\u0062", "pid": 1, "tid": "x",
        "ts": 1695835078123456.789, "dur": 0.5, "args": {"Sequence number": 7, "Fwd thread id": 2,
        "Input Dims": [[1, 2]], "Input type": ["float"], "grid": [1]}}"#;

    #[test]
    fn an_event_becomes_a_row() {
        let mut scanner = new();
        assert_eq!(scan(&mut scanner, OP, 0, 1 << 18), OP.len());
        let columns = &scanner.columns;
        assert_eq!(columns.start_ns, [1_695_835_078_123_456_789]);
        assert_eq!(columns.dur_ns, [500]);
        assert_eq!((columns.key[0], columns.value[0]), (7, 2));
        assert_eq!(scanner.names.entry(0), b"ab");
        assert_eq!(scanner.lanes.entry(0), b"tn1\0sx\0");
        let detail = b"[[1, 2]]\0[\"float\"]\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(scanner.details.entry(0), detail);
    }

    #[test]
    fn chunks_end_with_the_first_event_behind_a_multiple_of_the_step() {
        let event = r#"{"ph":"C"}"#;
        let text = [event; 10].join(",");
        let mut scanner = new();
        assert_eq!(scan(&mut scanner, &text, 1000, 25), text.len());
        let ends: Vec<i64> = scanner.chunks.iter().map(|one| one.offset + one.size).collect();
        assert_eq!(ends, [1010, 1032, 1054, 1076, 1109]);
        assert_eq!(scanner.totals().phases[b'C' as usize], 10);
    }

    #[test]
    fn an_escaped_name_is_what_it_stands_for() {
        let text = r#"{"ph":"i","name":"[m\u0065mory]","ts":4,"args":{"Bytes":-512}}"#;
        let mut scanner = new();
        assert_eq!(scan(&mut scanner, text, 0, 1), text.len());
        assert_eq!(scanner.totals().rows, 0);
        assert_eq!(scanner.memory, [[4000, -512, 0, -1, -1, -1, -1]]);
    }

    #[test]
    fn an_odd_event_takes_its_chunk_with_it() {
        for odd in [
            r#"{"ph":"X","ts":"1"}"#,
            r#"{"ph":"X"}"#,
            r#"{"ph":"X","ts":1,"ts":2}"#,
            r#"{"ph":"X","ts":1,"args":{"bytes":1,"bytes":2}}"#,
            r#"{"ph":"X","ts":1,"args":[]}"#,
            r#"{"ph":"X","ts":1,"name":null}"#,
            r#"{"ph":"X","ts":1,"pid":1.5}"#,
            r#"{"ph":"?","ts":1}"#,
            r#"{"name":"a"}"#,
            r#"{}"#,
        ] {
            let text = format!("{OP},{OP},{odd},{OP}");
            let mut scanner = new();
            assert_eq!(scan(&mut scanner, &text, 0, 1), 2 * OP.len() + 1, "{odd}");
            assert_eq!(scanner.totals().rows, 2);
            let mut scanner = new();
            assert_eq!(scan(&mut scanner, &text, 1, 1 << 18), 0);
            assert!(scanner.totals().rows == 0 && scanner.names.is_empty());
        }
    }

    #[test]
    fn arguments_that_are_null_do_not_hide_those_that_are_not() {
        let null = r#"{"ph":"X","ts":1,"args":null}"#;
        let some = r#"{"ph":"X","ts":1,"args":{"bytes":5}}"#;
        let text = [null, some, null, some].join(",");
        let mut scanner = new();
        assert_eq!(scan(&mut scanner, &text, 0, 1), text.len());
        assert_eq!(scanner.columns.value, [-1, 5, -1, 5]);
    }

    #[test]
    fn fractions_of_a_nanosecond_are_rounded_half_to_even() {
        for (us, ns) in
            [("0.0005", 0), ("0.0015", 2), ("1e-3", 1), ("-0.0015", -2), ("2.5e3", 2_500_000)]
        {
            let mut scanner = new();
            let text = format!(r#"{{"ph":"X","ts":{us}}}"#);
            assert_eq!(scan(&mut scanner, &text, 0, 1), text.len());
            assert_eq!(scanner.columns.start_ns, [ns], "{us}");
        }
    }

    #[test]
    fn what_is_taken_back_can_be_found_again() {
        let mut scanner = new();
        scan(&mut scanner, OP, 0, 1);
        let before = scanner.totals();
        let more = OP.replace("a\\u0062", "c").replace("\"x\"", "5");
        scan(&mut scanner, &more, 0, 1);
        scanner.roll_back(&before);
        assert_eq!(scanner.names.len(), 1);
        scan(&mut scanner, &more, 0, 1);
        assert_eq!(scanner.columns.name, [0, 1]);
        assert_eq!(scanner.columns.lane, [0, 1]);
    }
}
