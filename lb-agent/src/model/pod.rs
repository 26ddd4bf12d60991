//! Pod: whose sockets are left alone.

use super::ObjectName;

/// A pod of this node that says something of its sockets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pod {
    /// Name.
    pub name: ObjectName,
    /// By which the kubelet names the pod's cgroup.
    pub uid: String,
    /// Its sockets are not to be translated: its packets are, on its link.
    pub is_opted_out: bool,
}
