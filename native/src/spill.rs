//! Large memory in files without a name, so that a process stays within a bound.
//!
//! While a bound is set, allocations of some size, this library's and numpy's, are shared mappings
//! of temporary files that have no name: they are gone with the process, however it ends. A thread
//! watches how much of the process is resident and lets go of such pages in turn; what is in them
//! stays in the file, and the kernel writes to the disk what it has no room for. Linux only.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// No kernel has smaller pages; some have larger ones.
const LEAST_PAGE: usize = 4096;
/// How much is let go at a time.
const PIECE: usize = 16 << 20;
/// Files are written in pieces of this size first, and a page fault brings one such piece. Of files
/// that page faults fill, newer kernels (6.18) bring up to two megabytes at a fault.
const TOGETHER: usize = 64 << 10;
/// So many mappings are kept to be used again, for a page that is new to its file costs far more ...
const MAX_SPARE: usize = 64;
/// ... of no more bytes than the bound, or this part of all.
const SPARE_PART: usize = 4;
/// Near the bound, pages may come in at tens of gigabytes a second.
const LOOK_EVERY: Duration = Duration::from_micros(300);
const LOOK_CALMLY_EVERY: Duration = Duration::from_millis(3);

/// Allocations from this size on are files; as good as infinite without a bound.
static LARGE: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Whether a file found no room since the bound was set.
static NO_ROOM: AtomicBool = AtomicBool::new(false);
static SPILLED: Mutex<Spilled> = Mutex::new(Spilled::new());

struct Spilled {
    folder: Option<PathBuf>,
    /// So much of the process may be resident.
    limit: usize,
    /// By address.
    maps: BTreeMap<usize, Mapping>,
    /// Those of them that nobody uses, the latest last.
    spare: Vec<usize>,
    /// Where the next piece is let go.
    next: usize,
    watched: bool,
    /// Another process may see some of the mappings: none is used again.
    forked: bool,
}

struct Mapping {
    size: usize,
    /// Whether it came into use since the last way through it, or pages were found there.
    at_work: bool,
    /// The same for this way, as far as it went.
    found: bool,
}

impl Mapping {
    fn new(size: usize) -> Mapping {
        Mapping { size, at_work: true, found: true }
    }
}

extern "C" {
    fn mmap(
        at: *mut c_void,
        n: usize,
        access: i32,
        flags: i32,
        file: i32,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(at: *mut c_void, n: usize) -> i32;
    fn madvise(at: *mut c_void, n: usize, advice: i32) -> i32;
    fn fallocate(file: i32, mode: i32, offset: i64, n: i64) -> i32;
    fn setpriority(which: i32, who: u32, nice: i32) -> i32;
    fn sysconf(name: i32) -> i64;
    fn pthread_atfork(
        before: extern "C" fn(),
        in_parent: extern "C" fn(),
        in_child: extern "C" fn(),
    ) -> i32;
}

const READ_AND_WRITE: i32 = 3;
const MAP_SHARED: i32 = 1;
const MADV_DONTNEED: i32 = 4;
const EINTR: i32 = 4;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;
const SC_PAGESIZE: i32 = 30;
const O_TMPFILE: i32 = if cfg!(target_arch = "aarch64") { 0o20_040_000 } else { 0o20_200_000 };

static ZEROS: [u8; TOGETHER] = [0; TOGETHER];

fn spilled() -> MutexGuard<'static, Spilled> {
    SPILLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keep the process within `limit` bytes from here on, by files in `folder`; 0 for no bound.
///
/// What is in files stays there until it is freed. False, and nothing is changed, where the folder
/// takes none or the kernel does not tell how much is resident.
pub fn bound(limit: usize, large: usize, folder: &Path) -> bool {
    static FORKS: Once = Once::new();
    // SAFETY: they live as long as the process.
    FORKS.call_once(|| unsafe {
        pthread_atfork(before_fork, in_parent, in_child);
    });
    let mut all = spilled();
    if limit == 0 {
        LARGE.store(usize::MAX, Ordering::Relaxed);
        NO_ROOM.store(false, Ordering::Relaxed);
        let excess = all.excess(0);
        drop(all);
        give_back(excess);
        return true;
    }
    if unnamed(folder).is_none() {
        return false;
    }
    if !all.watched {
        let Ok(statm) = File::open("/proc/self/statm") else { return false };
        let watcher = thread::Builder::new().name("memory bound".into());
        all.watched = watcher.spawn(move || watch(&statm)).is_ok();
    }
    if all.watched {
        (all.limit, all.folder) = (limit, Some(folder.to_path_buf()));
        LARGE.store(large, Ordering::Relaxed);
    }
    all.watched
}

/// Whether a file found no room since the bound was set, so that memory had to do.
pub fn is_out_of_room() -> bool {
    NO_ROOM.load(Ordering::Relaxed)
}

/// Bytes of a page, in which the kernel counts.
fn page() -> usize {
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    let known = PAGE.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: a question.
    let told = usize::try_from(unsafe { sysconf(SC_PAGESIZE) }).unwrap_or(0).max(LEAST_PAGE);
    PAGE.store(told, Ordering::Relaxed);
    told
}

// -- forks: a lock that another thread holds would stay locked in the child for good --------------

static HELD: AtomicPtr<MutexGuard<'static, Spilled>> = AtomicPtr::new(ptr::null_mut());

extern "C" fn before_fork() {
    HELD.store(Box::into_raw(Box::new(spilled())), Ordering::Relaxed);
}

extern "C" fn in_parent() {
    after_fork(true);
}

extern "C" fn in_child() {
    after_fork(false); // the thread that watches is not here
}

/// Parent and child share the mappings: neither uses one again that the other may look at.
fn after_fork(has_threads: bool) {
    // SAFETY: put there by `before_fork` in this thread, with the lock that no other has meanwhile.
    let mut all = unsafe { Box::from_raw(HELD.swap(ptr::null_mut(), Ordering::Relaxed)) };
    let excess = all.excess(0);
    all.forked = !all.maps.is_empty();
    all.watched &= has_threads;
    drop(all);
    give_back(excess);
}

fn unnamed(folder: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    if let Ok(file) = options.clone().custom_flags(O_TMPFILE).open(folder) {
        return Some(file);
    }
    // some file systems give every file a name, if only for a moment
    let name = format!(".torchtriage-{}-{:?}", std::process::id(), thread::current().id());
    let file = options.create_new(true).open(folder.join(&name)).ok()?;
    std::fs::remove_file(folder.join(&name)).ok()?;
    Some(file)
}

fn pages(size: usize) -> usize {
    size.div_ceil(page()) * page()
}

/// Return memory in a file of its own, null where there is no room for one.
fn map(size: usize, zeroed: bool) -> *mut u8 {
    let size = pages(size);
    let mut all = spilled();
    let spare = all.take_spare(size);
    let folder = all.folder.clone();
    // files may have to wait for the disk: nobody waits for us meanwhile
    drop(all);
    if let Some(at) = spare {
        if zeroed {
            // SAFETY: nobody else's, and at least as large.
            unsafe { ptr::write_bytes(at, 0, size) };
        }
        return at;
    }
    let Some(at) = folder.and_then(|folder| map_file(&folder, size)) else {
        NO_ROOM.store(true, Ordering::Relaxed);
        return ptr::null_mut();
    };
    spilled().maps.insert(at as usize, Mapping::new(size));
    at
}

/// Map a new file of zeros.
fn map_file(folder: &Path, size: usize) -> Option<*mut u8> {
    let file = unnamed(folder)?;
    file.set_len(size as u64).ok()?;
    if !reserve(&file, size) {
        return None;
    }
    for start in (0..size).step_by(TOGETHER) {
        let n = TOGETHER.min(size - start);
        file.write_all_at(&ZEROS[..n], start as u64).ok()?;
    }
    // SAFETY: a file of ours, and a new mapping of it that outlives it.
    let at =
        unsafe { mmap(ptr::null_mut(), size, READ_AND_WRITE, MAP_SHARED, file.as_raw_fd(), 0) };
    (at as isize != -1).then_some(at.cast())
}

/// Reserve a file's room on the disk: a full one is an error here, and a signal once it is mapped.
fn reserve(file: &File, size: usize) -> bool {
    loop {
        // SAFETY: a file of ours.
        if unsafe { fallocate(file.as_raw_fd(), 0, 0, size as i64) } == 0 {
            return true;
        }
        if let Some(goes_on) = goes_on_after(std::io::Error::last_os_error().raw_os_error()) {
            return goes_on;
        }
    }
}

/// Whether a file may be mapped after `fallocate` failed so; None when it has to be asked again.
fn goes_on_after(error: Option<i32>) -> Option<bool> {
    match error {
        Some(EINTR) => None,
        Some(EOPNOTSUPP | ENOSYS) => Some(true), // a file system that cannot reserve, and may have room
        _ => Some(false),
    }
}

/// Return the size of the mapping that begins here.
fn mapped(at: *mut u8) -> Option<usize> {
    if at as usize % page() != 0 {
        return None; // as nearly everything: nobody waits for the lock
    }
    spilled().maps.get(&(at as usize)).map(|mapping| mapping.size)
}

/// Take a mapping back; false where none begins here.
fn unmap(at: *mut u8) -> bool {
    if at as usize % page() != 0 {
        return false;
    }
    let mut all = spilled();
    let is_ours = all.maps.contains_key(&(at as usize));
    if is_ours {
        all.spare.push(at as usize);
        let is_useful = LARGE.load(Ordering::Relaxed) != usize::MAX && !all.forked;
        let most = if is_useful { all.limit.max(all.size(|_| true) / SPARE_PART) } else { 0 };
        let excess = all.excess(most);
        all.forked &= !all.maps.is_empty();
        drop(all);
        give_back(excess);
    }
    is_ours
}

/// End mappings that nobody knows any more.
fn give_back(mappings: Vec<(usize, usize)>) {
    for (at, size) in mappings {
        // SAFETY: they were ours.
        unsafe { munmap(at as *mut c_void, size) };
    }
}

/// Let go of pages whenever too many are resident; ends with the last mapping behind the bound.
fn watch(statm: &File) {
    // SAFETY: of this thread alone. Where it is not allowed, a busy machine lets the bound be passed.
    unsafe { setpriority(0, 0, -20) };
    let mut pause = LOOK_EVERY;
    loop {
        thread::sleep(pause);
        let mut all = spilled();
        if LARGE.load(Ordering::Relaxed) == usize::MAX && all.maps.is_empty() {
            all.watched = false;
            return;
        }
        let (resident, of_files) = read(statm);
        let target = all.limit / 2;
        pause = if resident < target { LOOK_CALMLY_EVERY } else { LOOK_EVERY };
        // the rest is for what comes in until this thread gets its turn; memory that is not ours to
        // let go may be beyond the bound, and what we have is worth keeping then
        if resident <= all.limit / 8 * 5 || of_files <= all.limit / 8 {
            continue;
        }
        let begun = Instant::now();
        // first where pages came in lately: to look at all of some gigabytes takes longer than many
        // take to come in
        if !all.let_go_until(target, true, statm) && !all.let_go_until(target, false, statm) {
            pause = pause.max(begun.elapsed()); // in vain, and perhaps again
        }
    }
}

/// Return how much of the process is resident, and how much of that is files.
fn read(statm: &File) -> (usize, usize) {
    let mut text = [0; 128];
    let n = statm.read_at(&mut text, 0).unwrap_or(0);
    let text = std::str::from_utf8(&text[..n]).unwrap_or("");
    let mut pages = text.split(' ').skip(1).map(|pages| pages.parse().unwrap_or(0));
    let mut next = || pages.next().unwrap_or(0) * page();
    (next(), next())
}

impl Spilled {
    const fn new() -> Spilled {
        Spilled {
            folder: None,
            limit: 0,
            maps: BTreeMap::new(),
            spare: Vec::new(),
            next: 0,
            watched: false,
            forked: false,
        }
    }

    /// Return a mapping that is free and hardly larger.
    fn take_spare(&mut self, size: usize) -> Option<*mut u8> {
        let fits = |at: &usize| (size..=size + size / 4).contains(&self.maps[at].size);
        let index = self.spare.iter().rposition(fits)?;
        let at = self.spare.remove(index);
        let one = self.maps.get_mut(&at)?;
        *one = Mapping::new(one.size);
        Some(at as *mut u8)
    }

    /// Forget all free mappings but the latest, of so many bytes, and return them.
    fn excess(&mut self, n_bytes: usize) -> Vec<(usize, usize)> {
        let latest = self.spare.iter().rev().take(MAX_SPARE);
        let sizes = latest.scan(0, |sum, at| {
            *sum += self.maps[at].size;
            Some(*sum)
        });
        let n = self.spare.len() - sizes.take_while(|&sum| sum <= n_bytes).count();
        let entries = self.spare.drain(..n).filter_map(|at| self.maps.remove_entry(&at));
        entries.map(|(at, one)| (at, one.size)).collect()
    }

    /// Return how large some of the mappings are together.
    fn size(&self, chosen: impl Fn(&Mapping) -> bool) -> usize {
        self.maps.values().filter(|one| chosen(one)).map(|one| one.size).sum()
    }

    /// Let go of pages until so much is resident; false where all of them are not enough.
    fn let_go_until(&mut self, target: usize, only_at_work: bool, statm: &File) -> bool {
        let begin = self.next;
        let mut is_around = false;
        let mut resident = read(statm).0;
        while resident > target {
            if is_around && self.next >= begin {
                return false;
            }
            match self.let_go(only_at_work, resident, statm) {
                Some(left) => resident = left,
                None if is_around => return false,
                None => is_around = true,
            }
        }
        true
    }

    /// Let go of the next piece; return how much is resident then, or None behind the last one.
    fn let_go(&mut self, only_at_work: bool, resident: usize, statm: &File) -> Option<usize> {
        let chosen = |one: &Mapping| one.at_work || !only_at_work;
        let before = self.maps.range_mut(..=self.next).next_back();
        let inside = before.filter(|(&at, one)| self.next < at + one.size && chosen(one));
        let next = match inside {
            None => self.maps.range_mut(self.next..).find(|(_, one)| chosen(one)),
            found => found,
        };
        let Some((&at, one)) = next else {
            self.next = 0;
            return None;
        };
        let start = self.next.max(at);
        let n = PIECE.min(at + one.size - start);
        // SAFETY: pages of a shared mapping: what was written is in the file, and comes back from it.
        unsafe { madvise(start as *mut c_void, n, MADV_DONTNEED) };
        let left = read(statm).0;
        // the kernel counts for each processor alone, and tells the sum somewhat later
        one.found = (one.found && start > at) || left + n / 64 < resident;
        self.next = start + n;
        if self.next == at + one.size {
            one.at_work = one.found;
        }
        Some(left)
    }
}

// -- this library's memory ---------------------------------------------------------------------

/// The system's memory, and files beyond it.
pub struct Memory;

// SAFETY: every block goes back to where it came from, which `SPILLED` knows; mappings are aligned to
// pages, and new ones are zeros.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE.load(Ordering::Relaxed) && layout.align() <= LEAST_PAGE {
            let at = map(layout.size(), false);
            if !at.is_null() {
                return at;
            }
        }
        // SAFETY: the caller's. Without room on the disk, memory has to do.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE.load(Ordering::Relaxed) && layout.align() <= LEAST_PAGE {
            let at = map(layout.size(), true);
            if !at.is_null() {
                return at;
            }
        }
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if layout.size() < LEAST_PAGE || !unmap(at) {
            // SAFETY: the caller's; nothing smaller was asked of us as large.
            unsafe { System.dealloc(at, layout) }
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let stays = new_size < LARGE.load(Ordering::Relaxed)
            && (layout.size() < LEAST_PAGE || mapped(at).is_none());
        if stays {
            // SAFETY: the caller's.
            return unsafe { System.realloc(at, layout, new_size) };
        }
        // SAFETY: the caller's; both have room for what is copied.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !new.is_null() {
                ptr::copy_nonoverlapping(at, new, layout.size().min(new_size));
                self.dealloc(at, layout);
            }
            new
        }
    }
}

// -- numpy's memory ----------------------------------------------------------------------------

/// What numpy calls `PyDataMem_Handler`.
#[repr(C)]
pub struct Handler {
    name: [u8; 127],
    version: u8,
    context: *const Handler,
    malloc: unsafe extern "C" fn(*const Handler, usize) -> *mut u8,
    calloc: unsafe extern "C" fn(*const Handler, usize, usize) -> *mut u8,
    realloc: unsafe extern "C" fn(*const Handler, *mut u8, usize) -> *mut u8,
    free: unsafe extern "C" fn(*const Handler, *mut u8, usize),
}

/// Make numpy's memory handler of the one that small arrays are left to; it is never freed.
pub fn handler(small: *const Handler) -> *const Handler {
    let mut name = [0; 127];
    name[..11].copy_from_slice(b"torchtriage");
    Box::leak(Box::new(Handler { name, version: 1, context: small, malloc, calloc, realloc, free }))
}

/// # Safety
/// `small` is numpy's own handler, here and below.
unsafe extern "C" fn malloc(small: *const Handler, size: usize) -> *mut u8 {
    if size >= LARGE.load(Ordering::Relaxed) {
        return map(size, false); // null is numpy's MemoryError
    }
    // SAFETY: by contract.
    unsafe { ((*small).malloc)((*small).context, size) }
}

unsafe extern "C" fn calloc(small: *const Handler, n: usize, size: usize) -> *mut u8 {
    if n.saturating_mul(size) >= LARGE.load(Ordering::Relaxed) {
        return n.checked_mul(size).map_or(ptr::null_mut(), |size| map(size, true));
    }
    // SAFETY: by contract.
    unsafe { ((*small).calloc)((*small).context, n, size) }
}

unsafe extern "C" fn realloc(small: *const Handler, at: *mut u8, size: usize) -> *mut u8 {
    let Some(old) = mapped(at) else {
        // SAFETY: by contract.
        return unsafe { ((*small).realloc)((*small).context, at, size) };
    };
    let new = map(size, false);
    if !new.is_null() {
        // SAFETY: both have room for it.
        unsafe { ptr::copy_nonoverlapping(at, new, old.min(size)) };
        unmap(at);
    }
    new
}

unsafe extern "C" fn free(small: *const Handler, at: *mut u8, size: usize) {
    if !unmap(at) {
        // SAFETY: by contract.
        unsafe { ((*small).free)((*small).context, at, size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_system_that_cannot_reserve_is_trusted() {
        const ENOSPC: i32 = 28;
        const EDQUOT: i32 = 122;
        assert_eq!(goes_on_after(Some(EINTR)), None);
        assert_eq!(goes_on_after(Some(EOPNOTSUPP)), Some(true));
        assert_eq!(goes_on_after(Some(ENOSYS)), Some(true));
        for error in [Some(ENOSPC), Some(EDQUOT), Some(5), None] {
            assert_eq!(goes_on_after(error), Some(false));
        }
    }

    #[test]
    fn what_is_resident_is_counted_in_the_kernels_pages() {
        let told = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let size = told.lines().find_map(|line| line.strip_prefix("KernelPageSize:")).unwrap();
        let kilobytes: usize = size.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        assert_eq!(page(), kilobytes << 10);
        assert_eq!(pages(1), page());
        let statm = File::open("/proc/self/statm").unwrap();
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let counted: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
        let bytes = read(&statm).0;
        assert!(bytes > counted * page() / 2 && bytes < counted * page() * 2);
    }

    /// For tests that look at what is resident.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn the_latest_free_mappings_are_kept() {
        let mut all = Spilled::new();
        for (at, size) in [(1, 50), (2, 10), (3, 30), (4, 20)] {
            all.maps.insert(at, Mapping::new(size));
            all.spare.push(at);
        }
        assert!(all.excess(110).is_empty());
        assert_eq!(all.excess(60), [(1, 50)]);
        assert_eq!(all.excess(59), [(2, 10)]);
        assert_eq!(all.take_spare(25), Some(3 as *mut u8));
        assert_eq!(all.spare, [4]);
        assert_eq!(all.excess(0), [(4, 20)]);
        assert_eq!(all.maps.into_keys().collect::<Vec<_>>(), [3], "it is in use");
    }

    #[test]
    fn pages_are_sought_where_they_came_in_last() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let statm = File::open("/proc/self/statm").unwrap();
        let size = 2 * PIECE;
        let [full, empty] = [0, 0].map(|_| map_file(&std::env::temp_dir(), size).unwrap());
        let mut all = Spilled::new();
        for at in [full, empty] {
            all.maps.insert(at as usize, Mapping::new(size));
        }
        // what other tests allocate and free meanwhile is counted, too
        let is_told = (0..10).any(|_| {
            // SAFETY: ours, and so large.
            unsafe { ptr::write_bytes(full, 1, size) };
            assert!(!all.let_go_until(0, false, &statm), "nothing of the rest is let go");
            let at_work = |at: *mut u8| all.maps[&(at as usize)].at_work;
            at_work(full) && !at_work(empty)
        });
        assert!(is_told);
        all.next = 0;
        assert!(all.let_go(true, 0, &statm).is_some());
        assert!((full as usize..full as usize + size).contains(&all.next));
        give_back([full, empty].map(|at| (at as usize, size)).to_vec());
    }

    #[test]
    fn a_way_that_begins_inside_ends() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let statm = File::open("/proc/self/statm").unwrap();
        let [first, second] = [0, 0].map(|_| map_file(&std::env::temp_dir(), 2 * PIECE).unwrap());
        for beginning in [first as usize, second as usize].map(|at| at + PIECE) {
            for only_at_work in [true, false, true] {
                let mut all = Spilled::new();
                for at in [first, second] {
                    all.maps.insert(at as usize, Mapping::new(2 * PIECE));
                    // SAFETY: ours, and so large.
                    unsafe { ptr::write_bytes(at, 1, PIECE) };
                }
                all.next = beginning;
                for _ in 0..3 {
                    assert!(!all.let_go_until(0, only_at_work, &statm));
                }
                assert!(all.let_go_until(usize::MAX, only_at_work, &statm));
            }
        }
        give_back([first, second].map(|at| (at as usize, 2 * PIECE)).to_vec());
    }

    #[test]
    fn a_page_fault_brings_little() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let statm = File::open("/proc/self/statm").unwrap();
        let (size, step) = (256 << 20, 4 << 20);
        let at = map_file(&std::env::temp_dir(), size).unwrap();
        // SAFETY: ours, and so large.
        unsafe { ptr::write_bytes(at, 1, size) };
        let mut all = Spilled::new();
        all.maps.insert(at as usize, Mapping::new(size));
        all.let_go_until(0, false, &statm);
        let before = read(&statm).0;
        // SAFETY: as above.
        let sum: u64 = (0..size).step_by(step).map(|i| u64::from(unsafe { *at.add(i) })).sum();
        assert_eq!(sum, 64);
        assert!(read(&statm).0 < before + size / 8);
        give_back(vec![(at as usize, size)]);
    }

    #[test]
    fn what_leaves_memory_comes_back() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!bound(1 << 30, 1 << 16, Path::new("/no such folder")));
        assert!(bound(1 << 30, 1 << 16, &std::env::temp_dir()));
        let mut numbers: Vec<u64> = Vec::new();
        for i in 0..3 << 16 {
            numbers.push(i); // moves from memory to a file, and on to larger ones
        }
        let zeros = vec![0u8; 1 << 20];
        assert!(mapped(numbers.as_mut_ptr().cast()).is_some());
        let mut all = spilled();
        let statm = File::open("/proc/self/statm").unwrap();
        all.let_go_until(0, false, &statm);
        drop(all);
        assert!(numbers.iter().copied().eq(0..3 << 16));
        assert!(zeros.iter().all(|&byte| byte == 0));
        drop(zeros);
        assert!(vec![0u8; 1 << 20].iter().all(|&byte| byte == 0), "used again");
        assert!(bound(0, 0, Path::new("")));
        // what is still there stays what it is
        numbers.shrink_to(100);
        assert!(numbers.iter().copied().eq(0..3 << 16));
        drop(numbers);
        assert!(spilled().spare.is_empty());

        // without room memory has to do, and that is told
        assert!(bound(1 << 30, 1 << 16, &std::env::temp_dir()));
        assert!(!is_out_of_room());
        spilled().folder = Some("/no such folder".into());
        let mut beside = vec![1u8; 1 << 20];
        assert!(mapped(beside.as_mut_ptr()).is_none() && is_out_of_room());
        assert!(bound(0, 0, Path::new("")));
        assert!(!is_out_of_room());
    }
}
