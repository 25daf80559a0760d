//! The C interface that `core/trace/native.py` calls.
//!
//! Every function that takes a scanner expects one that [`tt_new`] made, and no two at a time with
//! the same one. No panic leaves this file.

use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use crate::intervals::{covered, intersect, union, Span};
use crate::replay::{Lanes, Steps, Stretch};
use crate::scan::{Scanner, Schema, Totals};
use crate::tree::{above, group, own, renumber, under, Rows};

/// Raise with every change of what is declared here.
const VERSION: u32 = 9;

/// What [`tt_scan`] and the others return when something is wrong with the library itself.
const BROKEN: i64 = -1;

/// Return the count that a call gives, [`BROKEN`] where it panics.
fn counted(call: impl FnOnce() -> i64) -> i64 {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(BROKEN)
}

/// Return 0 when a call is done, [`BROKEN`] where it panics.
fn done(call: impl FnOnce()) -> i64 {
    catch_unwind(AssertUnwindSafe(call)).map_or(BROKEN, |()| 0)
}

#[no_mangle]
pub extern "C" fn tt_version() -> u32 {
    VERSION
}

/// Make a scanner; null where the schema is not understood.
///
/// # Safety
/// `schema` points at `len` bytes; `Schema::read` says what they are.
#[no_mangle]
pub unsafe extern "C" fn tt_new(schema: *const u8, len: usize) -> *mut Scanner {
    // SAFETY: by contract.
    let schema = unsafe { from_raw_parts(schema, len) };
    catch_unwind(|| {
        Schema::read(schema).map(|schema| Box::into_raw(Box::new(Scanner::new(schema))))
    })
    .ok()
    .flatten()
    .unwrap_or(ptr::null_mut())
}

/// # Safety
/// `scanner` is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn tt_free(scanner: *mut Scanner) {
    if !scanner.is_null() {
        // SAFETY: by contract it is ours, and this is the last use.
        drop(unsafe { Box::from_raw(scanner) });
    }
}

/// Scan a text; return how much of it is done.
///
/// # Safety
/// `text` points at `len` bytes that nobody writes to, the padding included.
#[no_mangle]
pub unsafe extern "C" fn tt_scan(
    scanner: *mut Scanner,
    text: *const u8,
    len: usize,
    offset: i64,
    step: i64,
) -> i64 {
    // SAFETY: by contract.
    let (scanner, text) = unsafe { (&mut *scanner, from_raw_parts(text, len)) };
    counted(|| scanner.scan(text, offset, step) as i64)
}

/// # Safety
/// `out` has room for the totals.
#[no_mangle]
pub unsafe extern "C" fn tt_totals(scanner: *const Scanner, out: *mut Totals) {
    // SAFETY: by contract.
    unsafe { *out = (*scanner).totals() };
}

/// Forget everything found since `totals`.
///
/// # Safety
/// `totals` are earlier ones of this scanner.
#[no_mangle]
pub unsafe extern "C" fn tt_roll_back(scanner: *mut Scanner, totals: *const Totals) -> i64 {
    // SAFETY: by contract.
    let (scanner, totals) = unsafe { (&mut *scanner, &*totals) };
    done(|| scanner.roll_back(totals))
}

/// Texts of a table: 0 names, 1 categories, 2 lanes, 3 details, 4 labels.
///
/// # Safety
/// The two places take a pointer each; what they get is good until the next scan.
#[no_mangle]
pub unsafe extern "C" fn tt_table(
    scanner: *const Scanner,
    which: u32,
    bytes: *mut *const u8,
    ends: *mut *const u64,
) {
    // SAFETY: by contract.
    let scanner = unsafe { &*scanner };
    let (texts, limits) = match which {
        0 => (scanner.names.bytes(), scanner.names.ends()),
        1 => (scanner.cats.bytes(), scanner.cats.ends()),
        2 => (scanner.lanes.bytes(), scanner.lanes.ends()),
        3 => (scanner.details.bytes(), scanner.details.ends()),
        _ => (scanner.labels.bytes(), scanner.labels.ends()),
    };
    // SAFETY: by contract.
    unsafe {
        *bytes = texts.as_ptr();
        *ends = limits.as_ptr();
    }
}

/// Numbers found beside the columns: 0 allocator records, 1 marks, 2 chunks, 3 codes of labels.
///
/// # Safety
/// What is returned is good until the next scan.
#[no_mangle]
pub unsafe extern "C" fn tt_records(scanner: *const Scanner, which: u32) -> *const i64 {
    // SAFETY: by contract.
    let scanner = unsafe { &*scanner };
    match which {
        0 => scanner.memory.as_ptr().cast(),
        1 => scanner.marks.as_ptr().cast(),
        2 => scanner.chunks.as_ptr().cast(),
        _ => scanner.label_order.as_ptr(),
    }
}

/// Copy `n` rows of a column from `first` on, with codes looked up in `codes`.
///
/// Columns count in the order of `COLUMN_TYPES`. A code of -1 stays.
///
/// # Safety
/// `out` has room for `n` values of the column's type; `codes` has one for each code in use, and
/// is null for columns that hold none.
#[no_mangle]
pub unsafe extern "C" fn tt_copy(
    scanner: *const Scanner,
    column: u32,
    first: usize,
    n: usize,
    codes: *const i32,
    n_codes: usize,
    out: *mut u8,
) -> i64 {
    // SAFETY: by contract.
    let columns = unsafe { &(*scanner).columns };
    let codes: &[i32] =
        if codes.is_null() { &[] } else { unsafe { from_raw_parts(codes, n_codes) } };
    done(|| {
        // SAFETY: by contract.
        unsafe {
            match column {
                0 => copy(&columns.start_ns, first, n, out),
                1 => copy(&columns.dur_ns, first, n, out),
                2 => recode(&columns.name, first, n, codes, out),
                3 => recode_small(&columns.cat, first, n, codes, out),
                4 => recode(&columns.lane, first, n, codes, out),
                5 => copy(&columns.key, first, n, out),
                6 => copy(&columns.value, first, n, out),
                _ => recode(&columns.detail, first, n, codes, out),
            }
        }
    })
}

unsafe fn copy(from: &[i64], first: usize, n: usize, out: *mut u8) {
    let from = &from[first..first + n];
    // SAFETY: the caller's: there is room for them.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), out.cast::<i64>(), n) };
}

unsafe fn recode(from: &[i32], first: usize, n: usize, codes: &[i32], out: *mut u8) {
    // SAFETY: the caller's: there is room for them.
    let out = unsafe { from_raw_parts_mut(out.cast::<i32>(), n) };
    for (to, &code) in out.iter_mut().zip(&from[first..first + n]) {
        *to = if code < 0 { code } else { codes[code as usize] };
    }
}

unsafe fn recode_small(from: &[i16], first: usize, n: usize, codes: &[i32], out: *mut u8) {
    // SAFETY: the caller's: there is room for them.
    let out = unsafe { from_raw_parts_mut(out.cast::<i16>(), n) };
    for (to, &code) in out.iter_mut().zip(&from[first..first + n]) {
        *to = codes[code as usize] as i16;
    }
}

/// Give back the memory of a column that has been copied.
///
/// # Safety
/// The column is not copied again.
#[no_mangle]
pub unsafe extern "C" fn tt_drop(scanner: *mut Scanner, column: u32) {
    // SAFETY: by contract.
    let columns = unsafe { &mut (*scanner).columns };
    match column {
        0 => columns.start_ns = Vec::new(),
        1 => columns.dur_ns = Vec::new(),
        2 => columns.name = Vec::new(),
        3 => columns.cat = Vec::new(),
        4 => columns.lane = Vec::new(),
        5 => columns.key = Vec::new(),
        6 => columns.value = Vec::new(),
        _ => columns.detail = Vec::new(),
    }
}

/// Columns of a trace, `n` rows each.
#[repr(C)]
pub struct TraceColumns {
    pub n: usize,
    pub lane: *const i32,
    pub start_ns: *const i64,
    pub dur_ns: *const i64,
    pub kind: *const u8,
    pub key: *const i64,
    pub value: *const i64,
}

/// Find the members of a call tree and their parents; return how many members there are.
///
/// `ranks` says of each kind where it stands among equals, zero for what is no member. `by_id` says
/// that `key` and `value` name frames and their parents.
///
/// # Safety
/// The columns have `n` rows and lanes below `n_lanes`; `ranks` has 256 elements; `members` and
/// `parent` have room for `n`.
#[no_mangle]
pub unsafe extern "C" fn tt_tree(
    trace: *const TraceColumns,
    ranks: *const [u8; 256],
    n_lanes: usize,
    tolerance_ns: i64,
    by_id: bool,
    members: *mut i64,
    parent: *mut i32,
) -> i64 {
    // SAFETY: by contract.
    let (trace, ranks) = unsafe { (&*trace, &*ranks) };
    let n = trace.n;
    // SAFETY: by contract.
    let (rows, key, value, members, parent) = unsafe {
        let rows = Rows {
            lane: from_raw_parts(trace.lane, n),
            start_ns: from_raw_parts(trace.start_ns, n),
            dur_ns: from_raw_parts(trace.dur_ns, n),
            kind: from_raw_parts(trace.kind, n),
        };
        (
            rows,
            from_raw_parts(trace.key, n),
            from_raw_parts(trace.value, n),
            from_raw_parts_mut(members, n),
            from_raw_parts_mut(parent, n),
        )
    };
    counted(|| {
        let found = rows.ordered(ranks, n_lanes);
        parent.fill(-1);
        if !by_id || !rows.by_id(&found, key, value, parent) {
            rows.contain(&found, tolerance_ns, parent);
        }
        members[..found.len()].copy_from_slice(&found);
        found.len() as i64
    })
}

/// Write what each member of a tree takes itself; the other rows stay as they are.
///
/// # Safety
/// `start_ns`, `dur_ns`, `parent` and `own_ns` have `n` elements, and `members` has `n_members`, each a row.
#[no_mangle]
pub unsafe extern "C" fn tt_own(
    n: usize,
    start_ns: *const i64,
    dur_ns: *const i64,
    members: *const i64,
    n_members: usize,
    parent: *const i32,
    own_ns: *mut i64,
) -> i64 {
    // SAFETY: by contract.
    let (start_ns, dur_ns, members, parent, own_ns) = unsafe {
        (
            from_raw_parts(start_ns, n),
            from_raw_parts(dur_ns, n),
            from_raw_parts(members, n_members),
            from_raw_parts(parent, n),
            from_raw_parts_mut(own_ns, n),
        )
    };
    done(|| own(start_ns, dur_ns, members, parent, own_ns))
}

/// Write which members of a tree have a proper ancestor in a mask; the other rows stay as they are.
///
/// # Safety
/// `parent`, `mask` and `out` have `n` elements, and `members` has `n_members`, each a row.
#[no_mangle]
pub unsafe extern "C" fn tt_under(
    n: usize,
    members: *const i64,
    n_members: usize,
    parent: *const i32,
    mask: *const bool,
    out: *mut bool,
) -> i64 {
    // SAFETY: by contract.
    let (members, parent, mask, out) = unsafe {
        (
            from_raw_parts(members, n_members),
            from_raw_parts(parent, n),
            from_raw_parts(mask, n),
            from_raw_parts_mut(out, n),
        )
    };
    done(|| under(members, parent, mask, out))
}

/// Write which members of a tree have a proper descendant in a mask; the other rows stay as they are.
///
/// # Safety
/// `parent`, `mask` and `out` have `n` elements, and `members` has `n_members`, each a row.
#[no_mangle]
pub unsafe extern "C" fn tt_above(
    n: usize,
    members: *const i64,
    n_members: usize,
    parent: *const i32,
    mask: *const bool,
    out: *mut bool,
) -> i64 {
    // SAFETY: by contract.
    let (members, parent, mask, out) = unsafe {
        (
            from_raw_parts(members, n_members),
            from_raw_parts(parent, n),
            from_raw_parts(mask, n),
            from_raw_parts_mut(out, n),
        )
    };
    done(|| above(members, parent, mask, out))
}

/// Write the time covered by any of the spans; return how many intervals that is.
///
/// # Safety
/// `spans` and `out` have `n` elements.
#[no_mangle]
pub unsafe extern "C" fn tt_union(spans: *const Span, n: usize, out: *mut Span) -> i64 {
    // SAFETY: by contract.
    let (spans, out) = unsafe { (from_raw_parts(spans, n), from_raw_parts_mut(out, n)) };
    counted(|| union(spans, out) as i64)
}

/// Write the time covered by both; return how many intervals that is, or `BROKEN` where they were not disjoint.
///
/// # Safety
/// `left` and `right` have as many elements as is said, and `out` as many as both.
#[no_mangle]
pub unsafe extern "C" fn tt_intersect(
    left: *const Span,
    n_left: usize,
    right: *const Span,
    n_right: usize,
    out: *mut Span,
) -> i64 {
    // SAFETY: by contract.
    let (left, right, out) = unsafe {
        (
            from_raw_parts(left, n_left),
            from_raw_parts(right, n_right),
            from_raw_parts_mut(out, n_left + n_right),
        )
    };
    counted(|| intersect(left, right, out) as i64)
}

/// Write how much of each span a cover covers.
///
/// # Safety
/// `spans` and `out` have `n` elements, `cover` has `n_cover`.
#[no_mangle]
pub unsafe extern "C" fn tt_covered(
    spans: *const Span,
    n: usize,
    cover: *const Span,
    n_cover: usize,
    out: *mut i64,
) -> i64 {
    // SAFETY: by contract.
    let (spans, cover, out) = unsafe {
        (from_raw_parts(spans, n), from_raw_parts(cover, n_cover), from_raw_parts_mut(out, n))
    };
    done(|| covered(spans, cover, out))
}

/// Give codes the order of their first use; return how many are in use.
///
/// # Safety
/// `codes` has `n` elements, each -1 or below `n_merged`; `merged` and `order` have `n_merged`.
#[no_mangle]
pub unsafe extern "C" fn tt_renumber(
    codes: *mut i32,
    n: usize,
    merged: *const i32,
    n_merged: usize,
    order: *mut i32,
) -> i64 {
    // SAFETY: by contract.
    let (codes, merged, order) = unsafe {
        (
            from_raw_parts_mut(codes, n),
            from_raw_parts(merged, n_merged),
            from_raw_parts_mut(order, n_merged),
        )
    };
    counted(|| {
        let found = renumber(codes, merged);
        order[..found.len()].copy_from_slice(&found);
        found.len() as i64
    })
}

/// Write the rows by their code, and where each code's rows begin.
///
/// # Safety
/// `codes` and `rows` have `n` elements, codes are from 0 on and below `n_codes`, and `first` has one
/// more than that.
#[no_mangle]
pub unsafe extern "C" fn tt_group(
    codes: *const i32,
    n: usize,
    n_codes: usize,
    rows: *mut i32,
    first: *mut i64,
) -> i64 {
    // SAFETY: by contract.
    let (codes, rows, first) = unsafe {
        (
            from_raw_parts(codes, n),
            from_raw_parts_mut(rows, n),
            from_raw_parts_mut(first, n_codes + 1),
        )
    };
    done(|| group(codes, rows, first))
}

/// Where a stretch of a graph lies; see [`Stretch`].
#[repr(C)]
pub struct GraphStretch {
    width: usize,
    n_done: usize,
    n_nodes: usize,
    n_edges: usize,
    n_lags: usize,
    before: *const i64,
    edge_first: *const i64,
    source: *const i64,
    lag: *const i64,
}

/// Run a stretch of a graph: the steps in its table become finish times.
///
/// # Safety
/// `before` has `n_nodes` elements, `edge_first` one more, `source` has `n_edges`, `lag` `n_lags`
/// for each of them, and `table` `width` for each row.
#[no_mangle]
pub unsafe extern "C" fn tt_replay(stretch: *const GraphStretch, table: *mut i64) -> i64 {
    // SAFETY: by contract.
    let (stretch, table) = unsafe {
        let raw = &*stretch;
        (
            Stretch {
                width: raw.width,
                n_done: raw.n_done,
                before: from_raw_parts(raw.before, raw.n_nodes),
                edge_first: from_raw_parts(raw.edge_first, raw.n_nodes + 1),
                source: from_raw_parts(raw.source, raw.n_edges),
                lag: from_raw_parts(raw.lag, raw.n_edges * raw.n_lags),
                n_lags: raw.n_lags,
            },
            from_raw_parts_mut(table, (raw.n_done + raw.n_nodes) * raw.width),
        )
    };
    done(|| stretch.run(table))
}

/// How long the nodes of a graph take; see [`Steps`].
#[repr(C)]
pub struct GraphSteps {
    n_nodes: usize,
    n_variants: usize,
    n_scenarios: usize,
    dur: *const *const i64,
    still: *const *const i64,
    place: *const *const i32,
    left: *const *const f64,
    n_changes: *const usize,
}

/// Write how long `n` nodes from `begin` on take in each variant and scenario.
///
/// # Safety
/// `dur` and `still` point at `n_nodes` elements for each variant, `place` and `left` at `n_changes` for each scenario,
/// and `table` has one for each variant and scenario of each of the `n` nodes.
#[no_mangle]
pub unsafe extern "C" fn tt_steps(
    steps: *const GraphSteps,
    begin: usize,
    n: usize,
    table: *mut i64,
) -> i64 {
    // SAFETY: by contract.
    let (steps, table) = unsafe {
        let raw = &*steps;
        let nodes = |at: *const i64| from_raw_parts(at, raw.n_nodes);
        let variants = 0..raw.n_variants;
        let changes = |s: usize| {
            let n = *raw.n_changes.add(s);
            let place = from_raw_parts(*raw.place.add(s), n);
            (place, from_raw_parts(*raw.left.add(s), n))
        };
        (
            Steps {
                takes: variants
                    .map(|v| (nodes(*raw.dur.add(v)), nodes(*raw.still.add(v))))
                    .collect(),
                changes: (0..raw.n_scenarios).map(changes).collect(),
            },
            from_raw_parts_mut(table, n * raw.n_variants * raw.n_scenarios),
        )
    };
    done(|| steps.fill(begin, table))
}

/// Write an order to run the nodes of a graph in; return of how many runs, -1 where causes form a circle.
///
/// # Safety
/// `first` has `n_lanes` elements and one more, and counts nodes; `edge_first` has one for each node
/// and one more, and counts edges; `source` has a node for each; `runs` has room for three numbers a node.
#[no_mangle]
pub unsafe extern "C" fn tt_runs(
    first: *const i64,
    n_lanes: usize,
    edge_first: *const i64,
    n_nodes: usize,
    source: *const i64,
    n_edges: usize,
    runs: *mut i64,
) -> i64 {
    // SAFETY: by contract.
    let (lanes, runs) = unsafe {
        (
            Lanes {
                first: from_raw_parts(first, n_lanes + 1),
                edge_first: from_raw_parts(edge_first, n_nodes + 1),
                source: from_raw_parts(source, n_edges),
            },
            from_raw_parts_mut(runs.cast::<[i64; 3]>(), n_nodes),
        )
    };
    catch_unwind(|| lanes.runs())
        .ok()
        .flatten()
        .map(|found| {
            runs[..found.len()].copy_from_slice(&found);
            found.len() as i64
        })
        .unwrap_or(BROKEN)
}

/// Keep the process within `limit` bytes, with what is beyond in files in a folder; 0 for no bound.
///
/// Allocations from `large` bytes on are such files. Returns 0 where that is not possible.
///
/// # Safety
/// `folder` points at `len` bytes.
#[no_mangle]
pub unsafe extern "C" fn tt_bound(
    limit: usize,
    large: usize,
    folder: *const u8,
    len: usize,
) -> i64 {
    // SAFETY: by contract.
    let folder = unsafe { from_raw_parts(folder, len) };
    counted(|| i64::from(bound(limit, large, folder)))
}

/// Return 1 where a file found no room since the bound was set, so that memory had to do, else 0.
#[no_mangle]
pub extern "C" fn tt_out_of_room() -> i64 {
    i64::from(is_out_of_room())
}

/// Return a memory handler for numpy that keeps the same bound, made of the one it has; null where
/// that is not possible.
///
/// # Safety
/// `small` is a `PyDataMem_Handler` that is never freed.
#[no_mangle]
pub unsafe extern "C" fn tt_memory_handler(small: *const c_void) -> *const c_void {
    handler(small)
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn bound(limit: usize, large: usize, folder: &[u8]) -> bool {
    use std::os::unix::ffi::OsStrExt;

    crate::spill::bound(limit, large, std::ffi::OsStr::from_bytes(folder).as_ref())
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn handler(small: *const c_void) -> *const c_void {
    crate::spill::handler(small.cast()).cast()
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn is_out_of_room() -> bool {
    crate::spill::is_out_of_room()
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn is_out_of_room() -> bool {
    false
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn bound(_: usize, _: usize, _: &[u8]) -> bool {
    false
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn handler(_: *const c_void) -> *const c_void {
    ptr::null()
}
