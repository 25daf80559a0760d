//! Reads profiler events into columns at memory speed. See `docs/native.md`.

pub mod abi;
pub mod dict;
pub mod replay;
pub mod scan;
pub mod shape;
pub mod text;
pub mod tree;
