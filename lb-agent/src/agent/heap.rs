//! Memory of the process.

/// From so many service ports in one change on, what it took to make is worth giving back.
pub(super) const LARGE: usize = 1000;

/// Gives the kernel back what the allocator holds and nobody uses. After a first state that is more than half of all it
/// has, in pieces between what stays, which glibc would keep for ever.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and may be called by any thread at any time (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}
