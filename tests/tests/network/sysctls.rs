//! Settings of a node's kernel that are set, written down and put back.

use std::fs;

use lb_agent::desired::Family;
use lb_agent::kernel::sysctls::{self, End};
use lb_tests::netns::Netns;
use lb_tests::owner::Folder;

const FORWARDING: [&str; 2] = ["ipv4.ip_forward", "ipv6.conf.all.forwarding"];

/// A namespace without forwarding, and a folder to write down in.
struct Node {
    netns: Netns,
    folder: Folder,
}

impl Node {
    fn new() -> Self {
        let netns = Netns::new("node").unwrap();
        for key in FORWARDING {
            netns.set_sysctl(key, "0").unwrap();
        }
        Self {
            netns,
            folder: Folder::new().unwrap(),
        }
    }

    /// As the agent does it at its start.
    fn set(&self) -> Vec<String> {
        self.netns
            .run(|| {
                let findings = sysctls::check(&[Family::V4, Family::V6]).unwrap();
                let (set, failed) = sysctls::set(&findings, true, self.folder.path());
                assert!(failed.is_empty(), "{failed:?}");
                set.iter().map(|finding| finding.name.clone()).collect()
            })
            .unwrap()
    }

    fn restore(&self) -> Vec<sysctls::Restored> {
        self.netns
            .run(|| sysctls::restore(self.folder.path()))
            .unwrap()
            .unwrap()
    }

    fn values(&self) -> [String; 2] {
        FORWARDING.map(|key| self.netns.sysctl(key).unwrap())
    }
}

#[test]
fn what_one_agent_set_a_later_one_puts_back() {
    let node = Node::new();
    assert_eq!(node.set(), FORWARDING.map(|key| format!("net.{key}")));
    assert_eq!(node.values(), ["1", "1"]);
    // The next agent finds nothing to do, and forgets nothing.
    assert_eq!(node.set(), [""; 0]);
    let restored = node.restore();
    assert!(
        restored
            .iter()
            .all(|setting| matches!(setting.end, End::PutBack { .. })),
        "{restored:?}"
    );
    assert_eq!(node.values(), ["0", "0"]);
    assert!(node.restore().is_empty());
    assert_eq!(fs::read_dir(node.folder.path()).unwrap().count(), 0);
}

/// Sockets must not draw a port that a masqueraded client may have.
#[test]
fn the_ports_of_masqueraded_clients_are_reserved_where_sockets_would_draw_them() {
    const RESERVED: &str = "ipv4.ip_local_reserved_ports";
    let node = Node::new();
    node.set();
    node.netns.set_sysctl("ipv4.ip_local_port_range", "1024 65535").unwrap();
    assert_eq!(node.set(), ["net.ipv4.ip_local_reserved_ports"]);
    assert_eq!(node.netns.sysctl(RESERVED).unwrap(), "10000-29999");
    assert_eq!(node.set(), [""; 0]);
    node.restore();
    assert_eq!(node.netns.sysctl(RESERVED).unwrap(), "");
}

#[test]
fn what_was_written_down_in_one_namespace_changes_nothing_in_another() {
    let node = Node::new();
    node.set();
    let other = Netns::new("other").unwrap();
    other.set_sysctl(FORWARDING[0], "1").unwrap();
    let restored = other.run(|| sysctls::restore(node.folder.path())).unwrap().unwrap();
    assert!(
        restored.iter().all(|setting| matches!(setting.end, End::OfAnother)),
        "{restored:?}"
    );
    assert_eq!(other.sysctl(FORWARDING[0]).unwrap(), "1");
    assert_eq!(node.restore().len(), FORWARDING.len());
    assert_eq!(node.values(), ["0", "0"]);
}
