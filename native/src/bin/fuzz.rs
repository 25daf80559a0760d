//! Feeds mutated traces to the scanner: `cargo run --profile fuzz --bin fuzz -- SECONDS [FILE...]`.
//!
//! Starts from built-in events and from windows of the (plain JSON) files. After each text it checks
//! that tables, codes and chunks fit together, that every accepted chunk is JSON by another, slower
//! reading, that reading in two parts, or again after taking it back, gives the same, and that the
//! C interface gives what the scanner holds. A text that takes a branch in a way that none took before
//! is mutated further; for that the compiler has to count branches, which `make fuzz` asks of it.

use std::io::{Seek, Write};
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use torchtriage_native::abi::{tt_copy, tt_renumber, tt_tree, TraceColumns};
use torchtriage_native::scan::{Scanner, Schema};
use torchtriage_native::text::PADDING;

/// Texts beyond are not mutated further: small ones reach the same branches sooner.
const MAX_KEPT_BYTES: usize = 4096;

const EVENTS: &[&str] = &[
    r#"{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2,
  "args": {"External id": 5, "Sequence number": 7, "Fwd thread id": 0, "Input Dims": [[1, 2], []],
  "Input type": ["float", ""], "Concrete Inputs": ["", "[1, 2]"], "Input Strides": [[2, 1], []]}}"#,
    r#"{
    "ph": "X",
    "cat": "kernel",
    "name": "void \"k\"<\u00e9\ud83d\ude00>(float*)",
    "pid": 0,
    "tid": 7,
    "ts": 1695835078123456.789,
    "dur": 12.345
    ,
    "args": {
      "correlation": 9,
      "stream": "7",
      "device": 0,
      "grid": [1, 2, 3],
      "block": [32, 1, 1], "Collective name": "allreduce", "Process Group Ranks": "[0, 1]"

    }
  }"#,
    r#"{"name":"[memory]","ph":"i","s":"t","pid":1,"tid":1,"ts":4,"args":{"Bytes":-512,"Addr":139,"Total Allocated":1,"Device Type":1,"Device Id":0}}"#,
    r#"{"ph":"M","name":"thread_name","pid":1,"tid":"main","ts":0.000,"args":{"name":"thread 1"}}"#,
    r#"{"ph": "s", "id": 5, "pid": 1, "tid": 1, "ts": 3, "cat": "ac2g", "name": "ac2g"}"#,
    r#"{"ph":"B","name":"b","pid":-1,"tid":1,"ts":-3.25}"#,
    r#"{"ph":"E","pid":-1,"tid":1,"ts":1e1}"#,
    r#"{"ph":"X","cat":"python_function","name":"f.py(1): g","pid":1,"tid":1,"ts":5.12345,"dur":-1,"args":{"Python id":3,"Python parent id":null}}"#,
    r#"{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","ts":5,"pid":1,"tid":1,"args":{"correlation":99999999999999999999,"bytes":"12"}}"#,
];

const PIECES: &[&str] = &[
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    " ",
    "\n",
    "\0",
    "\u{7f}",
    "é",
    "null",
    "true",
    "NaN",
    "-",
    "0",
    "1e999",
    "\\u0000",
    "\\ud800",
    "\\udc00\\ud800",
    "},{",
    "}, {",
    "\"ph\":",
    "\"args\": {",
    "\"ph\":\"X\"",
    "[[[[[[[[",
    "]]]]]]]]",
    "99999999999999999999",
    "8796093022208.1255",
    "\"dur\": ",
    "                                ",
    "\"correlation\": 1, ",
    "\"Input Dims\": [], ",
    "0.0005",
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n.max(1)
    }
}

fn build(random: &mut Random, files: &[Vec<u8>]) -> Vec<u8> {
    if !files.is_empty() && random.below(3) == 0 {
        let file = &files[random.below(files.len())];
        let first = random.below(file.len());
        let text = &file[first..file.len().min(first + 1 + random.below(20_000))];
        // from an event on, if there is one
        let start = text.windows(2).position(|two| two == b"\n{" || two == b" {").unwrap_or(0);
        return text[start..].to_vec();
    }
    let n = 1 + random.below(12);
    let separator = [",", ", ", ",\n  ", "\n,\n\n"][random.below(4)];
    let events: Vec<&str> = (0..n).map(|_| EVENTS[random.below(EVENTS.len())]).collect();
    events.join(separator).into_bytes()
}

fn mutate(random: &mut Random, text: &mut Vec<u8>, kept: &[Vec<u8>]) {
    for _ in 0..random.below(6) {
        let at = random.below(text.len() + 1);
        match random.below(8) {
            0 if at < text.len() => text[at] = random.next() as u8,
            1 if at < text.len() => text[at] ^= 1 << random.below(8),
            2 => {
                let end = text.len().min(at + 1 + random.below(40));
                text.drain(at..end);
            }
            3 => {
                let end = text.len().min(at + 1 + random.below(200));
                let copy = text[at..end].to_vec();
                let to = random.below(text.len() + 1);
                text.splice(to..to, copy);
            }
            4 => text.truncate(at),
            5 if !kept.is_empty() && text.len() < MAX_KEPT_BYTES => {
                let other = &kept[random.below(kept.len())];
                let from = random.below(other.len() + 1);
                let end = other.len().min(from + 1 + random.below(400));
                text.splice(at..at, other[from..end].iter().copied());
            }
            _ => {
                let piece = PIECES[random.below(PIECES.len())];
                text.splice(at..at, piece.bytes());
            }
        }
    }
}

fn scan(scanner: &mut Scanner, text: &[u8], offset: i64, step: i64) -> usize {
    // exactly as much memory as there is text and padding, so that tools see a step beyond
    let mut padded = Vec::with_capacity(text.len() + PADDING);
    padded.extend_from_slice(text);
    padded.resize(text.len() + PADDING, 0);
    scanner.scan(&padded, offset, step)
}

fn new() -> Scanner {
    static SCHEMA: OnceLock<Arc<Schema>> = OnceLock::new();
    Scanner::new(SCHEMA.get_or_init(|| Arc::new(Schema::example())).clone())
}

/// Everything found, for comparison.
fn found(scanner: &Scanner) -> impl PartialEq + std::fmt::Debug {
    let columns = &scanner.columns;
    let chunks: Vec<_> = scanner.chunks.iter().map(|one| (one.row, one.offset, one.size)).collect();
    let marks: Vec<_> = scanner.marks.iter().map(|one| (one.at_ns, one.row, one.lane)).collect();
    let tables: Vec<Vec<u8>> =
        [&scanner.names, &scanner.cats, &scanner.lanes, &scanner.details, &scanner.labels]
            .map(|table| [table.bytes(), &table.len().to_le_bytes()].concat())
            .to_vec();
    let numbers =
        [&columns.start_ns, &columns.dur_ns, &columns.key, &columns.value].map(Clone::clone);
    let codes = [&columns.name, &columns.lane, &columns.detail].map(Clone::clone);
    let rest = (scanner.memory.clone(), scanner.label_order.clone(), scanner.totals().phases);
    (numbers, codes, columns.cat.clone(), chunks, marks, tables, rest)
}

fn check(scanner: &Scanner, text: &[u8], used: usize) {
    let totals = scanner.totals();
    let n = totals.rows as usize;
    let columns = &scanner.columns;
    for len in
        [columns.start_ns.len(), columns.dur_ns.len(), columns.key.len(), columns.value.len()]
    {
        assert_eq!(len, n);
    }
    for (codes, table) in [
        (&columns.name, &scanner.names),
        (&columns.lane, &scanner.lanes),
        (&columns.detail, &scanner.details),
    ] {
        assert_eq!(codes.len(), n);
        assert!(codes.iter().all(|&code| code >= -1 && code < table.len() as i32));
    }
    assert!(columns.cat.iter().all(|&code| (code as usize) < scanner.cats.len()));
    assert!(columns.dur_ns.iter().all(|&dur_ns| dur_ns >= 0));
    assert!(std::str::from_utf8(scanner.names.bytes()).is_ok());
    assert!(used <= text.len());
    let mut end = 0;
    for chunk in &scanner.chunks {
        let (start, size) = (chunk.offset as usize, chunk.size as usize);
        assert!(start >= end && size > 0);
        end = start + size;
        assert!(is_events(&text[start..end]), "{}", String::from_utf8_lossy(&text[start..end]));
    }
    assert_eq!(end, used);
}

/// What the C interface gives of the scanner's rows.
fn check_interface(scanner: &Scanner) {
    let columns = &scanner.columns;
    let n = scanner.totals().rows as usize;
    let same: Vec<i32> = (0..1 + scanner.names.len() as i32).collect();
    let mut times = vec![0i64; n];
    let mut names = vec![0i32; n];
    let (no_codes, n_codes) = (ptr::null(), same.len());
    let kind: Vec<u8> = columns.cat.iter().map(|&cat| cat as u8 % 4).collect();
    let mut ranks = [0u8; 256];
    ranks[1..4].copy_from_slice(&[1, 2, 2]);
    let (mut members, mut parent) = (vec![0i64; n], vec![0i32; n]);
    let trace = TraceColumns {
        n,
        lane: columns.lane.as_ptr(),
        start_ns: columns.start_ns.as_ptr(),
        dur_ns: columns.dur_ns.as_ptr(),
        kind: kind.as_ptr(),
        key: columns.key.as_ptr(),
        value: columns.value.as_ptr(),
    };
    let mut order = vec![0i32; same.len()];
    // SAFETY: everything has room for `n` rows, and tables for every code.
    unsafe {
        assert_eq!(tt_copy(scanner, 0, 0, n, no_codes, 0, times.as_mut_ptr().cast()), 0);
        assert_eq!(tt_copy(scanner, 2, 0, n, same.as_ptr(), n_codes, names.as_mut_ptr().cast()), 0);
        assert_eq!(times, columns.start_ns);
        assert_eq!(names, columns.name);
        for by_id in [false, true] {
            let n_members = tt_tree(
                &trace,
                &ranks,
                scanner.lanes.len(),
                0,
                by_id,
                members.as_mut_ptr(),
                parent.as_mut_ptr(),
            ) as usize;
            let mut place = vec![n; n];
            for (i, &row) in members[..n_members].iter().enumerate() {
                place[row as usize] = i;
            }
            for &row in &members[..n_members] {
                // a parent comes before its child, on the same lane: there are no cycles
                if let Ok(above) = usize::try_from(parent[row as usize]) {
                    assert!(place[above] < place[row as usize]);
                    assert_eq!(columns.lane[above], columns.lane[row as usize]);
                }
            }
        }
        let n_used = tt_renumber(names.as_mut_ptr(), n, same.as_ptr(), n_codes, order.as_mut_ptr());
        assert!(n_used as usize <= scanner.names.len());
    }
    assert!(names.iter().zip(&columns.name).all(|(&new, &old)| order[new as usize] == old));
}

// -- branches ----------------------------------------------------------------------------------

/// How often each branch was taken, where the compiler counts that.
mod coverage {
    use std::ptr;
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

    static START: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
    static LEN: AtomicUsize = AtomicUsize::new(0);

    /// Called before `main`, with `-Cpasses=sancov-module`.
    #[no_mangle]
    extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
        START.store(start, Ordering::Relaxed);
        LEN.store(stop as usize - start as usize, Ordering::Relaxed);
    }

    #[derive(Default)]
    pub struct Seen {
        /// One bit for each power of two of how often.
        counts: Vec<u8>,
        pub n_branches: usize,
    }

    impl Seen {
        /// Count from zero again.
        pub fn begin(&self) {
            let start = START.load(Ordering::Relaxed);
            if !start.is_null() {
                // SAFETY: the counters are as many, and this is the only thread.
                unsafe { ptr::write_bytes(start, 0, LEN.load(Ordering::Relaxed)) };
            }
        }

        /// Whether a branch was taken as often as never before.
        pub fn is_new(&mut self) -> bool {
            let (start, len) = (START.load(Ordering::Relaxed), LEN.load(Ordering::Relaxed));
            self.counts.resize(len, 0);
            let mut is_new = false;
            for i in 0..len {
                // SAFETY: as above; they change while this runs.
                let count = unsafe { start.add(i).read_volatile() };
                if count > 0 {
                    let bit = 1 << count.ilog2();
                    is_new |= self.counts[i] & bit == 0;
                    self.n_branches += usize::from(self.counts[i] == 0);
                    self.counts[i] |= bit;
                }
            }
            is_new
        }
    }
}

// -- another reading ---------------------------------------------------------------------------

fn is_events(text: &[u8]) -> bool {
    let mut rest = text;
    loop {
        if !matches!(gap(rest).first(), Some(b'{')) {
            return false;
        }
        let Some(after) = json(gap(rest), 0) else { return false };
        match gap(after).split_first() {
            None => return true,
            Some((b',', next)) => rest = next,
            _ => return false,
        }
    }
}

fn gap(text: &[u8]) -> &[u8] {
    let n = text.iter().take_while(|byte| b" \t\r\n".contains(byte)).count();
    &text[n..]
}

/// Return what follows the value that the text starts with.
fn json(text: &[u8], depth: usize) -> Option<&[u8]> {
    if depth > 200 {
        return None;
    }
    match text.first()? {
        b'{' | b'[' => {
            let is_object = text[0] == b'{';
            let close = if is_object { b'}' } else { b']' };
            let mut rest = gap(&text[1..]);
            if rest.first() == Some(&close) {
                return Some(&rest[1..]);
            }
            loop {
                if is_object {
                    rest = gap(word(rest)?).strip_prefix(b":")?;
                }
                rest = gap(json(gap(rest), depth + 1)?);
                match rest.split_first()? {
                    (b',', next) => rest = gap(next),
                    (byte, next) if *byte == close => return Some(next),
                    _ => return None,
                }
            }
        }
        b'"' => word(text),
        b't' => text.strip_prefix(b"true"),
        b'f' => text.strip_prefix(b"false"),
        b'n' => text.strip_prefix(b"null"),
        _ => {
            let n = text.iter().take_while(|byte| b"+-.eE0123456789".contains(byte)).count();
            let number = std::str::from_utf8(&text[..n]).ok()?;
            let digits = number.strip_prefix('-').unwrap_or(number);
            let whole = digits.split(['.', 'e', 'E']).next()?;
            let well = whole.bytes().all(|byte| byte.is_ascii_digit()) && !whole.is_empty();
            let zero = whole.len() > 1 && whole.starts_with('0');
            let dot = digits.split_once('.').map_or(true, |(_, decimals)| {
                decimals.starts_with(|letter: char| letter.is_ascii_digit())
            });
            (well && !zero && dot && number.parse::<f64>().is_ok()).then(|| &text[n..])
        }
    }
}

fn word(text: &[u8]) -> Option<&[u8]> {
    let mut i = 1;
    if text.first() != Some(&b'"') {
        return None;
    }
    loop {
        match text.get(i)? {
            b'"' => break,
            b'\\' => {
                let kind = text.get(i + 1)?;
                let hex = |k: usize| {
                    let digits = std::str::from_utf8(text.get(k..k + 4)?).ok()?;
                    let all = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                    all.then(|| u32::from_str_radix(digits, 16).unwrap())
                };
                i += match kind {
                    b'u' => match hex(i + 2)? {
                        0xD800..=0xDBFF => {
                            let low = (text.get(i + 6..i + 8)? == b"\\u").then(|| hex(i + 8))??;
                            (0xDC00..0xE000).contains(&low).then_some(12)?
                        }
                        0xDC00..=0xDFFF => return None,
                        _ => 6,
                    },
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
                    _ => return None,
                };
            }
            0..=0x1f => return None,
            _ => i += 1,
        }
    }
    std::str::from_utf8(&text[1..i]).ok()?;
    Some(&text[i + 1..])
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10);
    let files: Vec<Vec<u8>> =
        arguments.map(|path| std::fs::read(path).expect("a readable file")).collect();
    let start = Instant::now();
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    let mut random = Random(seed);
    let (mut n_runs, mut n_chunks, mut n_rows) = (0u64, 0u64, 0u64);
    // kept over many texts, as over the blocks of a file
    let mut old = new();
    let mut seen = coverage::Seen::default();
    let mut kept: Vec<Vec<u8>> = Vec::new();
    // a sanitizer ends the process at once: the text at work can be read here afterwards
    let at_work = std::env::temp_dir().join(format!("torchtriage-fuzz-{}", std::process::id()));
    let mut file = std::fs::File::create(&at_work).expect("a temporary file");
    let mut said = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        let mut text = match kept.len() {
            n if n > 0 && random.below(4) > 0 => kept[random.below(n)].clone(),
            _ => build(&mut random, &files),
        };
        mutate(&mut random, &mut text, &kept);
        file.rewind().and_then(|()| file.write_all(&text)).expect("room on the disk");
        file.set_len(text.len() as u64).expect("room on the disk");
        seen.begin();
        let step = [1, 50, 400, 1 << 18][random.below(4)];
        let report = |what: &str| {
            let shown = String::from_utf8_lossy(&text);
            eprintln!("{what}: seed {seed}, run {n_runs}, step {step}\n{text:?}\n{shown}");
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut one = new();
            let used = scan(&mut one, &text, 0, step);
            check(&one, &text, used);
            check_interface(&one);
            // in two parts, at the end of some chunk
            let mut two = new();
            let cut = match one.chunks.len() {
                0 => 0,
                n => {
                    let chunk = &one.chunks[used % n];
                    (chunk.offset + chunk.size) as usize
                }
            };
            assert_eq!(scan(&mut two, &text[..cut], 0, step), cut);
            assert_eq!(cut + scan(&mut two, &text[cut..], cut as i64, step), used);
            assert_eq!(found(&one), found(&two));
            // with what was learnt from other texts, and again after taking it back
            let before = old.totals();
            assert_eq!(scan(&mut old, &text, 0, step), used);
            let first = found(&old);
            old.roll_back(&before);
            assert_eq!(scan(&mut old, &text, 0, step), used);
            assert_eq!(first, found(&old));
            one.totals()
        }));
        match outcome {
            Ok(totals) => {
                n_chunks += totals.chunks;
                n_rows += totals.rows;
            }
            Err(_) => {
                report("failed");
                std::fs::remove_file(&at_work).expect("our file");
                std::process::exit(1);
            }
        }
        if seen.is_new() && text.len() <= MAX_KEPT_BYTES {
            kept.push(text);
        }
        n_runs += 1;
        if n_runs % 64 == 0 {
            old = new();
        }
        if said.elapsed() > Duration::from_secs(60) {
            said = Instant::now();
            eprintln!("{n_runs} texts, {} branches, {} kept", seen.n_branches, kept.len());
        }
    }
    std::fs::remove_file(&at_work).expect("our file");
    println!(
        "{n_runs} texts, {n_chunks} chunks accepted, {n_rows} rows, {} branches, {} kept, no finding",
        seen.n_branches,
        kept.len()
    );
}
