//! How fast the scanner alone is: `cargo run --release --example rate -- FILE [FILE...]`.

use std::time::Instant;

use torchtriage_native::scan::{Scanner, Schema};
use torchtriage_native::text::PADDING;

const BLOCK: usize = 2 << 20;
const ROUNDS: usize = 5;

/// Seconds on a processor, where the system says so: others may be at work here.
fn now() -> f64 {
    thread_local!(static START: Instant = Instant::now());
    let Ok(text) = std::fs::read_to_string("/proc/thread-self/schedstat") else {
        return START.with(|start| start.elapsed().as_secs_f64());
    };
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read(&path).expect("a readable file");
        let key = b"\"traceEvents\"";
        let after = text.windows(key.len()).position(|at| at == key).expect("events") + key.len();
        let first = after + text[after..].iter().position(|&byte| byte == b'[').unwrap() + 1;
        let mut best = f64::MAX;
        let mut used = 0;
        let mut rows = 0;
        for _ in 0..ROUNDS {
            let mut scanner = Scanner::new(Schema::example());
            let mut block = vec![0; BLOCK + PADDING];
            let mut at = first;
            let mut seconds = 0.0;
            loop {
                let n = BLOCK.min(text.len() - at);
                block[..n].copy_from_slice(&text[at..at + n]);
                block[n..n + PADDING].fill(0);
                let start = now();
                let done = scanner.scan(&block[..n + PADDING], at as i64, 256 << 10);
                seconds += now() - start;
                if done == 0 {
                    break;
                }
                at += done;
            }
            used = at - first;
            rows = scanner.totals().rows;
            best = best.min(seconds);
        }
        let rate = used as f64 / best / 1e9;
        println!("{path}: {used} of {} bytes, {rows} rows, {rate:.2} GB/s", text.len());
    }
}
