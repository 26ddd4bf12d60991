//! Finds the root of cgroup v2.

use std::{ffi::OsString, fs, io, os::unix::ffi::OsStringExt as _, path::PathBuf};

/// Where systemd mounts it.
const USUAL: &str = "/sys/fs/cgroup";
const MOUNTS: &str = "/proc/self/mountinfo";

/// Where cgroup v2 is mounted: `/sys/fs/cgroup`, or beside version 1 in `/sys/fs/cgroup/unified`. Where it is not,
/// where it should be.
pub fn root() -> io::Result<PathBuf> {
    Ok(find(&fs::read(MOUNTS)?).unwrap_or_else(|| USUAL.into()))
}

/// The mount point of the first cgroup2 in a mountinfo, see proc_pid_mountinfo(5). A mount of a part
/// of the tree, as a container may have, is taken only if there is no other.
fn find(mountinfo: &[u8]) -> Option<PathBuf> {
    let mut part = None;
    for line in mountinfo.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        // Fields that are there or not end with a single dash, the kind follows.
        let kind = fields.iter().position(|field| *field == b"-").map(|dash| dash + 1);
        if kind.and_then(|kind| fields.get(kind)).copied() != Some(b"cgroup2") {
            continue;
        }
        let [_, _, _, root, point, ..] = fields.as_slice() else {
            continue;
        };
        let point = PathBuf::from(OsString::from_vec(unescape(point)));
        if *root == b"/" {
            return Some(point);
        }
        part.get_or_insert(point);
    }
    part
}

/// Mount points have blanks, tabs, line ends and backslashes as `\ooo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:10 master:2 - cgroup2 cgroup2 rw
";

    #[test]
    fn the_unified_hierarchy_is_found_beside_the_old_one() {
        assert_eq!(find(HYBRID.as_bytes()), Some(PathBuf::from("/sys/fs/cgroup/unified")));
    }

    #[test]
    fn the_whole_tree_is_preferred_to_a_part_of_it() {
        let mounts = "\
1 0 0:5 /kubepods/x /part\\040of rw - cgroup2 cgroup2 rw
2 0 0:5 / /host/cgroup rw - cgroup2 cgroup2 rw
";
        assert_eq!(find(mounts.as_bytes()), Some(PathBuf::from("/host/cgroup")));
        let part = mounts.lines().next().unwrap_or_default();
        assert_eq!(find(part.as_bytes()), Some(PathBuf::from("/part of")));
    }

    #[test]
    fn without_one_there_is_none() {
        assert_eq!(find(b"1 0 0:5 / / rw - ext4 /dev/sda rw\n"), None);
        assert_eq!(find(b""), None);
    }
}
