//! Whose address the backend sees: who is to be masqueraded, by the mark. What comes of that: `speaks_for`.

use lb_common::{config::DEFAULT_MASQUERADE_MARK as MARK, service::MASQUERADE_ALL};

use crate::{
    backend, client,
    datapath::{Hook, each},
    frame::{ACK, SYN, frame},
    frontend,
};

#[test]
fn an_off_node_client_is_masqueraded_on_the_way_to_another_node_only() {
    for (hook, local, masqueraded) in [
        (Hook::OutsideIngress, false, true),
        (Hook::OutsideIngress, true, false),
        (Hook::PodIngress, false, false),
        (Hook::PodIngress, true, false),
    ] {
        each(|mut datapath, family, transport| {
            let number = datapath.backend(1, backend(family, 1), local);
            let range = datapath.slots(&[number]);
            datapath.service(transport, frontend(family), range, 0);
            // Each packet, not the first alone: the kernel may have forgotten the connection.
            for flags in [SYN, ACK] {
                let sent = frame(transport, client(family), frontend(family), flags);
                let out = datapath.run_marked(hook, &sent, 0x1);
                assert_eq!(out.mark, if masqueraded { 0x1 | MARK } else { 0x1 });
            }
        });
    }
}

#[test]
fn masquerade_all_means_pods_too() {
    each(|mut datapath, family, transport| {
        let number = datapath.backend(1, backend(family, 1), true);
        let range = datapath.slots(&[number]);
        datapath.service(transport, frontend(family), range, MASQUERADE_ALL);
        let sent = frame(transport, client(family), frontend(family), SYN);
        assert_eq!(datapath.run(Hook::PodIngress, &sent).mark, MARK);
    });
}

#[test]
fn a_pod_that_reaches_itself_is_masqueraded() {
    each(|mut datapath, family, transport| {
        let pod = backend(family, 1);
        let number = datapath.backend(1, pod, true);
        let range = datapath.slots(&[number]);
        datapath.service(transport, frontend(family), range, 0);
        let client = std::net::SocketAddr::new(pod.ip(), 40000);
        let out = datapath.run(Hook::PodIngress, &frame(transport, client, frontend(family), SYN));
        assert_eq!(out.mark, MARK);
    });
}
