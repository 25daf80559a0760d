//! Dictionary coding: byte strings to codes in the order of first appearance.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// A set of byte strings, each with the code it got when it was first seen.
///
/// The last entries can be taken back, which is how a piece of text that turns out unreadable
/// leaves no trace.
pub struct Dict {
    /// Open addressing: upper half of the hash, code plus one; zero is free.
    slots: Vec<(u32, u32)>,
    ends: Vec<u64>,
    bytes: Vec<u8>,
    /// Differs in every run: no file can be written so that its names collide.
    seed: u64,
}

impl Default for Dict {
    fn default() -> Self {
        Dict {
            slots: vec![(0, 0); 64],
            ends: Vec::new(),
            bytes: Vec::new(),
            seed: RandomState::new().build_hasher().finish() | 1,
        }
    }
}

impl Dict {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All entries one behind the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where each entry ends in `bytes`.
    pub fn ends(&self) -> &[u64] {
        &self.ends
    }

    pub fn entry(&self, code: usize) -> &[u8] {
        let start = if code == 0 { 0 } else { self.ends[code - 1] as usize };
        &self.bytes[start..self.ends[code] as usize]
    }

    /// Return the code of an entry, a new one where it has none.
    #[inline]
    pub fn code(&mut self, entry: &[u8]) -> u32 {
        let hash = hash(entry, self.seed);
        let tag = (hash >> 32) as u32;
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let (found, code) = self.slots[at];
            if code == 0 {
                return self.add(entry, tag, at);
            }
            if found == tag && self.entry(code as usize - 1) == entry {
                return code - 1;
            }
            at = (at + 1) & mask;
        }
    }

    #[cold]
    fn add(&mut self, entry: &[u8], tag: u32, at: usize) -> u32 {
        self.bytes.extend_from_slice(entry);
        self.ends.push(self.bytes.len() as u64);
        self.slots[at] = (tag, self.ends.len() as u32);
        if self.ends.len() * 2 > self.slots.len() {
            self.rebuild(self.slots.len() * 2);
        }
        self.ends.len() as u32 - 1
    }

    /// Forget all entries from `len` on.
    pub fn truncate(&mut self, len: usize) {
        if len < self.ends.len() {
            self.ends.truncate(len);
            let end = self.ends.last().copied().unwrap_or(0);
            self.bytes.truncate(end as usize);
            self.rebuild(self.slots.len());
        }
    }

    fn rebuild(&mut self, n_slots: usize) {
        let mut slots = vec![(0, 0); n_slots];
        for code in 0..self.ends.len() {
            let hash = hash(self.entry(code), self.seed);
            let mut at = hash as usize & (n_slots - 1);
            while slots[at].1 != 0 {
                at = (at + 1) & (n_slots - 1);
            }
            slots[at] = ((hash >> 32) as u32, code as u32 + 1);
        }
        self.slots = slots;
    }
}

const A: u64 = 0x9E37_79B9_7F4A_7C15;
const B: u64 = 0xD6E8_FEB8_6659_FD93;

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    wide as u64 ^ (wide >> 64) as u64
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Multiply and fold, sixteen bytes at a time.
#[inline]
pub fn hash(bytes: &[u8], seed: u64) -> u64 {
    let n = bytes.len();
    let mut state = seed ^ (n as u64).wrapping_mul(A);
    if n >= 16 {
        let mut at = 0;
        while at + 16 < n {
            state = fold(word(bytes, at) ^ state, word(bytes, at + 8) ^ A);
            at += 16;
        }
        // the last sixteen, some of them perhaps again
        state = fold(word(bytes, n - 16) ^ state, word(bytes, n - 8) ^ B);
    } else if n >= 8 {
        state = fold(word(bytes, 0) ^ state, word(bytes, n - 8) ^ B);
    } else {
        let mut last = [0; 8];
        last[..n].copy_from_slice(bytes);
        state = fold(u64::from_le_bytes(last) ^ state, A);
    }
    fold(state, B)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_count_up_in_order_of_appearance() {
        let mut dict = Dict::default();
        let words: Vec<String> = (0..5000).map(|i| "x".repeat(i % 70) + &i.to_string()).collect();
        for (i, word) in words.iter().enumerate() {
            assert_eq!(dict.code(word.as_bytes()), i as u32);
        }
        for (i, word) in words.iter().enumerate() {
            assert_eq!(dict.code(word.as_bytes()), i as u32);
            assert_eq!(dict.entry(i), word.as_bytes());
        }
        assert_eq!(dict.len(), 5000);
    }

    #[test]
    fn what_is_taken_back_gets_a_new_code() {
        let mut dict = Dict::default();
        for word in ["a", "b", "", "c"] {
            dict.code(word.as_bytes());
        }
        dict.truncate(1);
        assert_eq!(dict.len(), 1);
        assert_eq!(dict.code(b"c"), 1);
        assert_eq!(dict.code(b"a"), 0);
        assert_eq!(dict.code(b""), 2);
        dict.truncate(0);
        assert!(dict.is_empty());
        assert_eq!(dict.code(b"b"), 0);
    }

    #[test]
    fn hashes_depend_on_every_byte_and_the_length() {
        for n in 0..80 {
            let mut bytes = vec![7; n];
            let whole = hash(&bytes, 3);
            assert_ne!(whole, hash(&vec![7; n + 1], 3));
            for i in 0..n {
                bytes[i] = 8;
                assert_ne!(whole, hash(&bytes, 3), "{n} {i}");
                bytes[i] = 7;
            }
        }
    }
}
