//! Rows of maps: many in one call, or one by one where the kernel has no such call for the map.

use std::{io, mem::size_of, os::fd::BorrowedFd};

use aya::Pod;
use aya_obj::generated::{
    BPF_NOEXIST,
    bpf_cmd::{self, *},
};

use super::{bpf, number};

/// Part of a batch was done.
#[derive(Debug)]
pub(in crate::plane::ebpf) struct Partial {
    /// How many rows, from the front.
    pub(in crate::plane::ebpf) done: usize,
    /// Why the next one failed.
    pub(in crate::plane::ebpf) error: io::Error,
}

#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    elem_flags: u64,
    flags: u64,
}

/// Writes `values[i]` to `keys[i]`, in this order, up to the first that fails.
///
/// # Safety
/// `K` and `V` have the sizes of the map's keys and values.
pub(in crate::plane::ebpf) unsafe fn update_batch<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    keys: &[K],
    values: &[V],
) -> Result<(), Partial> {
    assert_eq!(keys.len(), values.len(), "one value a key");
    let attr = BatchAttr {
        keys: keys.as_ptr() as u64,
        values: values.as_ptr() as u64,
        map: number(map),
        ..BatchAttr::default()
    };
    // SAFETY: both slices live across the call and hold `keys.len()` elements of the map's sizes.
    unsafe { write_batch(BPF_MAP_UPDATE_BATCH, keys.len(), attr) }
}

/// Deletes `keys`, in this order, up to the first that fails.
///
/// # Safety
/// `K` has the size of the map's keys.
pub(in crate::plane::ebpf) unsafe fn delete_batch<K: Pod>(map: BorrowedFd<'_>, keys: &[K]) -> Result<(), Partial> {
    let attr = BatchAttr {
        keys: keys.as_ptr() as u64,
        map: number(map),
        ..BatchAttr::default()
    };
    // SAFETY: `keys` lives across the call and holds elements of the map's key size.
    unsafe { write_batch(BPF_MAP_DELETE_BATCH, keys.len(), attr) }
}

/// # Safety
/// The pointers of `attr` are good for `count` elements, as `command` uses them.
unsafe fn write_batch(command: bpf_cmd, count: usize, mut attr: BatchAttr) -> Result<(), Partial> {
    if count == 0 {
        return Ok(());
    }
    let Ok(asked) = u32::try_from(count) else {
        return Err(Partial {
            done: 0,
            error: io::Error::from_raw_os_error(libc::E2BIG),
        });
    };
    attr.count = asked;
    // SAFETY: the caller's contract.
    match unsafe { bpf(command, &mut attr) } {
        Ok(_) => Ok(()),
        // The kernel says how many it did, except when it refuses the call as a whole: then it
        // leaves the number that it was asked for.
        Err(error) => Err(Partial {
            done: if attr.count < asked { attr.count as usize } else { 0 },
            error,
        }),
    }
}

/// Room for the largest key of a map whose token is a key.
const TOKEN_WORDS: usize = 5;

/// Where a walk over a map stands.
#[derive(Default)]
pub(in crate::plane::ebpf) struct Cursor {
    /// The kernel's token: a bucket of a hash; of an array or a trie, the last key.
    token: [u64; TOKEN_WORDS],
    started: bool,
}

/// Reads the next rows of a map into the two buffers, which are of one length. Returns
/// how many, and whether there are more.
///
/// # Safety
/// `K` and `V` have the sizes of the map's keys and values.
pub(in crate::plane::ebpf) unsafe fn read_batch<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    cursor: &mut Cursor,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<(usize, bool)> {
    assert_eq!(keys.len(), values.len(), "one value a key");
    const { assert!(size_of::<K>() <= size_of::<[u64; TOKEN_WORDS]>(), "a key is a token") };
    let mut next = [0_u64; TOKEN_WORDS];
    let mut attr = BatchAttr {
        in_batch: if cursor.started {
            std::ptr::from_ref(&cursor.token) as u64
        } else {
            0
        },
        out_batch: std::ptr::from_mut(&mut next) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: u32::try_from(keys.len()).unwrap_or(u32::MAX),
        map: number(map),
        ..BatchAttr::default()
    };
    // SAFETY: the buffers hold `count` elements of the map's sizes; the tokens have room for the four
    // bytes that a hash wants, and for a key. `Pod` makes any bytes a value.
    let result = unsafe { bpf(BPF_MAP_LOOKUP_BATCH, &mut attr) };
    let more = match result {
        Ok(_) => true,
        // The end; the count is good.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => false,
        Err(error) => return Err(error),
    };
    *cursor = Cursor {
        token: next,
        started: true,
    };
    Ok((attr.count as usize, more))
}

#[repr(C)]
#[derive(Default)]
struct RowAttr {
    map: u32,
    pad: u32,
    key: u64,
    /// Or the next key.
    value: u64,
    flags: u64,
}

/// Writes a row.
///
/// # Safety
/// `K` and `V` have the sizes of the map's keys and values.
pub(in crate::plane::ebpf) unsafe fn update<K: Pod, V: Pod>(map: BorrowedFd<'_>, key: &K, value: &V) -> io::Result<()> {
    let mut attr = RowAttr {
        map: number(map),
        key: std::ptr::from_ref(key) as u64,
        value: std::ptr::from_ref(value) as u64,
        ..RowAttr::default()
    };
    // SAFETY: key and value live across the call and have the map's sizes.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Writes a row where there is none; says whether there was none.
///
/// # Safety
/// `K` and `V` have the sizes of the map's keys and values.
pub(in crate::plane::ebpf) unsafe fn add<K: Pod, V: Pod>(map: BorrowedFd<'_>, key: &K, value: &V) -> io::Result<bool> {
    let mut attr = RowAttr {
        map: number(map),
        key: std::ptr::from_ref(key) as u64,
        value: std::ptr::from_ref(value) as u64,
        flags: BPF_NOEXIST.into(),
        ..RowAttr::default()
    };
    // SAFETY: key and value live across the call and have the map's sizes.
    match unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attr) } {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        result => result.map(|_| true),
    }
}

/// Deletes a row; `ENOENT` where there is none.
///
/// # Safety
/// `K` has the size of the map's keys.
pub(in crate::plane::ebpf) unsafe fn delete<K: Pod>(map: BorrowedFd<'_>, key: &K) -> io::Result<()> {
    let mut attr = RowAttr {
        map: number(map),
        key: std::ptr::from_ref(key) as u64,
        ..RowAttr::default()
    };
    // SAFETY: the key lives across the call and has the map's size.
    unsafe { bpf(BPF_MAP_DELETE_ELEM, &mut attr) }.map(drop)
}

/// Writes the row of `key`, if there is one, over `value`; says whether there is.
///
/// # Safety
/// `K` and `V` have the sizes of the map's keys and values.
pub(in crate::plane::ebpf) unsafe fn look_up<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    key: &K,
    value: &mut V,
) -> io::Result<bool> {
    let mut attr = RowAttr {
        map: number(map),
        key: std::ptr::from_ref(key) as u64,
        value: std::ptr::from_mut(value) as u64,
        ..RowAttr::default()
    };
    // SAFETY: key and value live across the call and have the map's sizes. `Pod` makes any bytes a value.
    absent_is_false(unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attr) })
}

/// Writes the first key of a hash over `key`, whatever it is made of; says whether there is one.
///
/// # Safety
/// `key` has the size of the map's keys.
pub(in crate::plane::ebpf) unsafe fn first_key(map: BorrowedFd<'_>, key: &mut [u8]) -> io::Result<bool> {
    let mut attr = RowAttr {
        map: number(map),
        value: key.as_mut_ptr() as u64,
        ..RowAttr::default()
    };
    // SAFETY: the key lives across the call and has the map's size.
    absent_is_false(unsafe { bpf(BPF_MAP_GET_NEXT_KEY, &mut attr) })
}

/// Writes a row of an array, whatever it is made of.
///
/// # Safety
/// `value` has the size of the map's values, and its keys are `u32`.
pub(in crate::plane::ebpf) unsafe fn update_bytes(map: BorrowedFd<'_>, index: u32, value: &[u8]) -> io::Result<()> {
    // SAFETY: key and value live across the call and have the map's sizes.
    unsafe { of_array(BPF_MAP_UPDATE_ELEM, map, &index, value.as_ptr() as u64) }
}

/// Writes a row of an array over `value`, whatever it is made of.
///
/// # Safety
/// `value` has the size of the map's values, and its keys are `u32`.
pub(in crate::plane::ebpf) unsafe fn look_up_bytes(
    map: BorrowedFd<'_>,
    index: u32,
    value: &mut [u8],
) -> io::Result<()> {
    // SAFETY: key and value live across the call and have the map's sizes.
    unsafe { of_array(BPF_MAP_LOOKUP_ELEM, map, &index, value.as_mut_ptr() as u64) }
}

/// A command about one row of an array.
///
/// # Safety
/// `value` is the address of as many bytes as the map's values have, which the command may read or write.
unsafe fn of_array(command: bpf_cmd, map: BorrowedFd<'_>, index: &u32, value: u64) -> io::Result<()> {
    let mut attr = RowAttr {
        map: number(map),
        key: std::ptr::from_ref(index) as u64,
        value,
        ..RowAttr::default()
    };
    // SAFETY: as the caller has it; the index lives across the call.
    unsafe { bpf(command, &mut attr) }.map(drop)
}

/// Writes the key after `key`, or the first, over `next`; says whether there is one.
///
/// # Safety
/// `K` has the size of the map's keys.
pub(in crate::plane::ebpf) unsafe fn next_key<K: Pod>(
    map: BorrowedFd<'_>,
    key: Option<&K>,
    next: &mut K,
) -> io::Result<bool> {
    let mut attr = RowAttr {
        map: number(map),
        key: key.map_or(0, |key| std::ptr::from_ref(key) as u64),
        value: std::ptr::from_mut(next) as u64,
        ..RowAttr::default()
    };
    // SAFETY: both keys live across the call and have the map's size. `Pod` makes any bytes a value.
    absent_is_false(unsafe { bpf(BPF_MAP_GET_NEXT_KEY, &mut attr) })
}

fn absent_is_false(result: io::Result<i32>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}
