//! The chains of the table: the part that an operator reads. Of services and links they know sets alone.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::{
    TABLE,
    sets::{Set, suffix},
    table::Mark,
};
use crate::{desired::Family, kernel::nft::program};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// What the chains depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Settings {
    /// The bit of the packet's mark that asks to masquerade.
    pub(super) masquerade_mark: u32,
    /// Whether networks of pods are known, by family.
    has_pod_networks: [bool; 2],
}

impl Settings {
    pub(super) fn new(masquerade_mark: u32, pod_cidrs: &BTreeSet<IpNet>) -> Self {
        let has = |family| pod_cidrs.iter().any(|network| Family::of(network.addr()) == family);
        Self {
            masquerade_mark,
            has_pod_networks: FAMILIES.map(has),
        }
    }

    const fn has_pod_networks(&self, family: Family) -> bool {
        self.has_pod_networks[match family {
            Family::V4 => 0,
            Family::V6 => 1,
        }]
    }
}

/// A chain: its name, where it hooks in if it does, and its rules.
struct Chain {
    name: String,
    hook: Option<&'static str>,
    rules: Vec<String>,
}

/// The whole table without elements, in place of whatever there is. It is declared before it is deleted, so that the
/// deletion finds one.
pub(super) fn table(settings: Settings) -> String {
    let mut text = format!(
        "table {TABLE} {{}}\ndelete table {TABLE}\ntable {TABLE} {{\n    \
         comment \"Services by IPVS: written by lb-agent, removed by lb-agent cleanup\"\n"
    );
    Set::all().for_each(|set| text.push_str(&set.declaration()));
    for chain in all(settings) {
        text.push_str(&format!("    chain {} {{\n", chain.name));
        let lines = chain.hook.map(str::to_owned).into_iter().chain(chain.rules);
        lines.for_each(|line| text.push_str(&format!("        {line}\n")));
        text.push_str("    }\n");
    }
    text.push_str("}\n");
    text
}

/// The commands that make the chains of these settings out of those of others.
pub(super) fn commands_from(old: Settings, new: Settings) -> String {
    let mut text = String::new();
    for (old, new) in all(old).into_iter().zip(all(new)) {
        if old.rules != new.rules {
            let name = new.name;
            text.push_str(&format!("flush chain {TABLE} {name}\n"));
            let rules = new.rules.iter();
            rules.for_each(|rule| text.push_str(&format!("add rule {TABLE} {name} {rule}\n")));
        }
    }
    text
}

/// All chains; the same ones in the same order whatever the settings.
fn all(settings: Settings) -> Vec<Chain> {
    let of_families = |chains: fn(Settings, Family) -> Vec<Chain>| {
        FAMILIES.into_iter().flat_map(move |family| chains(settings, family))
    };
    let mut all = base(settings);
    all.extend(of_families(decide));
    all.extend(of_families(serve));
    all.push(chain("serve_masqueraded", serve_masqueraded()));
    all.push(chain("refuse", vec!["reject with icmpx type port-unreachable".into()]));
    all.extend(of_families(masquerade));
    all
}

fn chain(name: impl Into<String>, rules: Vec<String>) -> Chain {
    Chain {
        name: name.into(),
        hook: None,
        rules,
    }
}

/// The chains at hooks.
fn base(settings: Settings) -> Vec<Chain> {
    let hooked = |name: &str, hook, rules: Vec<String>| Chain {
        name: name.into(),
        hook: Some(hook),
        rules,
    };
    let by_family = |name: &str| format!("meta nfproto vmap {{ ipv4 : goto {name}_v4, ipv6 : goto {name}_v6 }}");
    // What may be for a service and is not decided already.
    let begins = || {
        [
            "meta l4proto != { tcp, udp, sctp } accept".to_owned(),
            "ct direction reply accept comment \"answers\"".to_owned(),
            "meta l4proto { tcp, sctp } ct state { established, related } accept \
             comment \"connections stand, whatever becomes of the service\""
                .to_owned(),
        ]
    };
    let mut input = vec!["iif \"lo\" accept comment \"decided in the chain output\"".to_owned()];
    input.extend(begins());
    input.push(by_family("input"));
    let mut output = begins().to_vec();
    output.push(by_family("output"));
    let forward = vec![
        "meta l4proto != { tcp, udp, sctp } accept".to_owned(),
        "ct state { established, related } accept".to_owned(),
        by_family("unserved"),
    ];
    let postrouting = vec![
        "meta l4proto != { tcp, udp, sctp } accept".to_owned(),
        by_family("masquerade"),
    ];
    let bit = settings.masquerade_mark;
    let (mask, ours) = (Mark::OURS_MASK, Mark::OURS);
    let forget = vec![
        format!("meta mark & {mask:#x} == {ours:#x} meta mark set 0 comment \"a tunnel would copy it\""),
        format!("meta mark & {bit:#x} == {bit:#x} meta mark set meta mark & {:#x}", !bit),
    ];
    vec![
        // IPVS is there at 98 and 99.
        hooked("input", "type filter hook input priority 97; policy accept;", input),
        // Behind connection tracking (-200), before IPVS (-99 and -98).
        hooked(
            "output",
            "type filter hook output priority -101; policy accept;",
            output,
        ),
        hooked(
            "forward",
            "type filter hook forward priority filter; policy accept;",
            forward,
        ),
        hooked(
            "postrouting",
            "type nat hook postrouting priority srcnat; policy accept;",
            postrouting,
        ),
        hooked(
            "forget_marks",
            "type filter hook postrouting priority 101; policy accept;",
            forget,
        ),
    ]
}

fn ip(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// What a client dials, as the key of maps.
fn frontend(family: Family) -> String {
    format!("{} daddr . meta l4proto . th dport", ip(family))
}

/// What is to become of a client.
fn decide(settings: Settings, family: Family) -> Vec<Chain> {
    let (ip, v, dialled) = (ip(family), suffix(family), frontend(family));
    let near = if settings.has_pod_networks(family) {
        format!("{ip} saddr @pod_networks_{v}")
    } else {
        "iif @pod_links".to_owned()
    };
    let allowed = |protocol| {
        format!("meta l4proto {protocol} {ip} daddr . th dport . {ip} saddr @allowed_{protocol}_sources_{v} return")
    };
    vec![
        chain(
            format!("input_{v}"),
            vec![
                format!("{dialled} @restricted_{v} jump restricted_{v}"),
                format!("{near} goto dialled_{v} comment \"near clients\""),
                format!("{dialled} vmap @far_frontends_{v}"),
                format!("goto dialled_{v}"),
            ],
        ),
        chain(
            format!("restricted_{v}"),
            vec![
                "ct state { established, related } return".to_owned(),
                allowed("tcp"),
                allowed("udp"),
                allowed("sctp"),
                "drop comment \"loadBalancerSourceRanges\"".to_owned(),
            ],
        ),
        chain(
            format!("output_{v}"),
            vec![
                format!(
                    "{dialled} @node_refused_{v} ct state != {{ established, related }} drop comment \"loadBalancerSourceRanges\""
                ),
                format!("goto dialled_{v}"),
            ],
        ),
        chain(
            format!("dialled_{v}"),
            vec![
                format!("{dialled} vmap @frontends_{v}"),
                format!("{ip} daddr @cluster_ips_{v} goto refuse"),
                format!("{ip} daddr @own_addresses_{v} goto refuse"),
                format!("goto unserved_{v}"),
            ],
        ),
        chain(
            format!("unserved_{v}"),
            vec![
                format!("{ip} daddr @of_another_proxy_{v} accept"),
                format!("{ip} daddr @service_networks_{v} fib daddr type != local drop comment \"nobody's\""),
            ],
        ),
    ]
}

/// What IPVS is to know of a client that it serves.
fn serve(settings: Settings, family: Family) -> Vec<Chain> {
    let (ip, v, dialled) = (ip(family), suffix(family), frontend(family));
    let bit = settings.masquerade_mark;
    let of_pod = if settings.has_pod_networks(family) {
        format!("iif @pod_links {ip} saddr @pod_networks_{v}")
    } else {
        "iif @pod_links".to_owned()
    };
    let answers_come_back = format!("{of_pod} accept comment \"a pod of this node: answers come by here\"");
    let set_mark = |client| format!("meta mark set {dialled} map @{client}_marks_{v}");
    let mut near = vec![not_of_node(), set_mark("near")];
    if settings.has_pod_networks(family) {
        near.push(answers_come_back.clone());
        near.push("fib saddr type local accept comment \"the node itself\"".to_owned());
        near.push(format!("meta mark set meta mark | {:#x}", Mark::MASQUERADE));
    }
    vec![
        chain(
            format!("serve_{v}"),
            vec![
                not_of_node(),
                answers_come_back,
                format!("ct state new meta mark set meta mark | {bit:#x}"),
            ],
        ),
        chain(format!("select_near_{v}"), near),
        chain(format!("select_far_{v}"), vec![not_of_node(), set_mark("far")]),
    ]
}

/// The kernel itself believes whoever claims an IPv6 address of the node.
fn not_of_node() -> String {
    // What the node itself sends comes in by no link, which newer kernels compare as 0.
    "iif != { 0, \"lo\" } fib saddr type local drop comment \"comes from outside with an address of the node\""
        .to_owned()
}

fn serve_masqueraded() -> Vec<String> {
    let mark = Mark::OURS | Mark::MASQUERADE_ALWAYS | Mark::MASQUERADE;
    vec![not_of_node(), format!("ct state new meta mark set {mark:#x}")]
}

/// Whose address gives way to the node's.
fn masquerade(settings: Settings, family: Family) -> Vec<Chain> {
    let (ip, v) = (ip(family), suffix(family));
    let bit = settings.masquerade_mark;
    let (mask, ours) = (Mark::OURS_MASK, Mark::OURS);
    let (elsewhere, always) = (Mark::MASQUERADE, Mark::MASQUERADE_ALWAYS);
    vec![
        chain(
            format!("masquerade_{v}"),
            vec![
                format!(
                    "{ip} saddr . {ip} daddr @hairpins_{v} oif != \"lo\" goto as_node_{v} comment \"a pod that reaches itself\""
                ),
                format!("meta mark & {mask:#x} == {ours:#x} goto by_mark_{v}"),
                format!("meta mark & {bit:#x} == {bit:#x} goto unless_here_{v}"),
            ],
        ),
        chain(
            format!("by_mark_{v}"),
            vec![
                format!("meta mark & {always:#x} == {always:#x} goto as_node_{v} comment \"masqueradeAll\""),
                format!(
                    "fib saddr type local goto as_node_{v} comment \"a process of the node has a service's address\""
                ),
                format!("meta mark & {elsewhere:#x} == {elsewhere:#x} goto unless_here_{v}"),
            ],
        ),
        chain(
            format!("unless_here_{v}"),
            vec![
                format!(
                    "fib saddr type local goto as_node_{v} comment \"a process of the node has a service's address\""
                ),
                format!(
                    "{ip} daddr != @local_endpoints_{v} goto as_node_{v} comment \"the answer would not come by here\""
                ),
            ],
        ),
        chain(
            format!("as_node_{v}"),
            vec![program::masquerade(family, "meta l4proto { tcp, udp, sctp } ")],
        ),
    ]
}
