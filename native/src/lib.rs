//! Reads profiler events into columns at memory speed. See `docs/native.md`.

pub mod abi;
pub mod dict;
pub mod intervals;
pub mod replay;
pub mod scan;
pub mod shape;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod spill;
pub mod text;
pub mod tree;

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[global_allocator]
static MEMORY: spill::Memory = spill::Memory;
