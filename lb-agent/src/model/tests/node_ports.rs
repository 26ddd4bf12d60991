//! Where NodePorts are served.

use super::*;

const ON_LINKS: [&str; 9] = [
    "127.0.0.1",
    "127.0.0.2",
    "::1",
    "169.254.20.10",
    "fe80::1",
    "192.168.0.1",
    "192.168.1.1",
    "203.0.113.1",
    "2001:db8::1",
];

fn node() -> Node {
    Node {
        internal_ips: vec![ip("192.168.0.1"), ip("192.168.1.1")],
        external_ips: vec![ip("198.51.100.1"), ip("2001:db8::1")],
        ..Node::default()
    }
}

fn rules(words: &[&str]) -> Rules {
    Rules {
        node_port_addresses: words.iter().map(|word| word.parse().unwrap()).collect(),
        ..Rules::default()
    }
}

fn on_links(addresses: &[&str]) -> Event {
    Event::NodeAddresses(addresses.iter().map(|address| ip(address)).collect())
}

fn served(words: &[&str]) -> Vec<String> {
    let mut cluster = Cluster::new(rules(words));
    cluster.apply(Event::Node(Some(node())));
    cluster.apply(on_links(&ON_LINKS));
    cluster.take_change();
    let addresses = cluster.state().node_port_addresses.iter();
    addresses.map(ToString::to_string).collect()
}

#[test]
fn the_words_and_what_they_mean() {
    let primary = ["192.168.0.1", "2001:db8::1"];
    assert_eq!(served(&[]), primary);
    assert_eq!(served(&["primary"]), primary);
    assert_eq!(served(&["localhost"]), ["127.0.0.1", "::1"]);
    assert_eq!(
        served(&["all"]),
        ["192.168.0.1", "192.168.1.1", "203.0.113.1", "2001:db8::1"]
    );
    assert_eq!(
        served(&["192.168.1.0/24", "2001:db8::/32"]),
        ["192.168.1.1", "2001:db8::1"]
    );
}

#[test]
fn words_add_up() {
    assert_eq!(
        served(&["primary", "localhost", "203.0.113.0/24"]),
        ["127.0.0.1", "192.168.0.1", "203.0.113.1", "::1", "2001:db8::1"]
    );
}

#[test]
fn a_network_means_every_address_in_it_even_those_that_all_leaves_out() {
    assert_eq!(
        served(&["127.0.0.0/8", "169.254.0.0/16", "fe80::/10"]),
        ["127.0.0.1", "127.0.0.2", "169.254.20.10", "fe80::1"]
    );
}

#[test]
fn the_whole_family_is_all_of_it() {
    assert_eq!(
        served(&["0.0.0.0/0", "::1/128"]),
        ["192.168.0.1", "192.168.1.1", "203.0.113.1", "::1"]
    );
}

#[test]
fn a_family_that_no_word_speaks_of_is_served_whole() {
    assert_eq!(served(&["192.168.0.0/24"]), ["192.168.0.1", "2001:db8::1"]);
    assert_eq!(
        rules(&["192.168.0.0/24"]).node_port_addresses.unrestricted(),
        BTreeSet::from([Family::V6])
    );
    assert_eq!(
        served(&["192.168.0.0/24", "localhost"]),
        ["127.0.0.1", "192.168.0.1", "::1"]
    );
}

#[test]
fn a_loopback_address_is_nobodys_primary_one() {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Node(Some(Node {
        internal_ips: vec![ip("127.0.0.1")],
        ..Node::default()
    })));
    cluster.take_change();
    assert!(cluster.state().node_port_addresses.is_empty());
}

#[test]
fn what_is_no_word_is_named() {
    let error = "Primary".parse::<crate::model::NodePortAddress>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"Primary\" is none of primary, localhost, all, and no CIDR"
    );
}

#[test]
fn addresses_come_and_go_with_the_nodes_links() {
    let mut cluster = Cluster::new(rules(&["all"]));
    let expect = |cluster: &mut Cluster, event: Event, expected: Option<&[&str]>| {
        cluster.apply(event);
        let expected = expected.map(|addresses| addresses.iter().map(|address| ip(address)).collect());
        assert_eq!(cluster.take_change().node_port_addresses, expected);
    };
    expect(
        &mut cluster,
        on_links(&["127.0.0.1", "192.168.0.1"]),
        Some(&["192.168.0.1"]),
    );
    expect(
        &mut cluster,
        on_links(&["192.168.0.1", "203.0.113.1"]),
        Some(&["192.168.0.1", "203.0.113.1"]),
    );
    expect(&mut cluster, on_links(&["fe80::1", "192.168.0.1", "203.0.113.1"]), None);
    expect(&mut cluster, on_links(&["203.0.113.1"]), Some(&["203.0.113.1"]));
}

#[test]
fn nothing_is_written_before_the_addresses_are_known_that_decide() {
    fn nothing<T>() -> Update<T> {
        Update::Replace {
            objects: Vec::new(),
            unreadable: Vec::new(),
        }
    }
    for (words, complete_without) in [("primary", true), ("localhost", true), ("all", false), ("::/0", false)] {
        let mut cluster = Cluster::new(rules(&[words]));
        cluster.apply(Event::Services(nothing()));
        cluster.apply(Event::EndpointSlices(nothing()));
        assert!(!cluster.is_complete(), "{words}");
        cluster.apply(Event::Node(None));
        assert_eq!(cluster.is_complete(), complete_without, "{words}");
        cluster.apply(on_links(&[]));
        assert!(cluster.is_complete(), "{words}");
    }
}
