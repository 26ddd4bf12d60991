//! What is measured of the loop.

use super::*;
use crate::model::EndpointSlice;

/// A slice of the Service `a`, as its controller wrote it at some time.
fn slice(triggered: Timestamp) -> EndpointSlice {
    let name = ObjectName::new("shop", "a-1");
    EndpointSlice::new(name, "a".to_owned(), Family::V4, Vec::new()).triggered_at(triggered)
}

fn applied_slice(triggered: Timestamp) -> Event {
    Event::EndpointSlices(Update::Apply(slice(triggered)))
}

fn value(agent: &Running, series: &str) -> Option<f64> {
    let text = agent.metrics.text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

async fn becomes(agent: &Running, series: &str, expected: f64) {
    let until = Instant::now() + Duration::from_secs(10);
    while value(agent, series) != Some(expected) {
        assert!(
            Instant::now() < until,
            "{series} is {:?}, expected {expected}",
            value(agent, series)
        );
        time::sleep(Duration::from_millis(10)).await;
    }
}

const PROGRAMMED: &str = r#"kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"}"#;
const LONG_AGO: &str = r#"kubeproxy_network_programming_duration_seconds_bucket{le="300.0",ip_family="IPv4"}"#;

#[tokio::test]
async fn a_change_of_a_pod_is_measured_once_it_is_in_the_kernel_and_not_from_before_the_start() {
    let before = Timestamp::now() - Duration::from_secs(1);
    let agent = Running::start();
    agent.plane.refuse(&["a"]);
    agent.send_lists(vec![service("a", 1)]).await;
    agent.calls(1).await;
    agent.send(vec![applied_slice(before)]).await;
    agent.send(vec![applied_slice(Timestamp::now())]).await;
    // It fails twice at least.
    agent.calls(2).await;
    assert_eq!(value(&agent, PROGRAMMED), None);
    agent.plane.refuse(&[]);
    becomes(&agent, PROGRAMMED, 1.0).await;

    // Of one that a clock ahead of ours wrote, no time has gone by.
    let tomorrow = Timestamp::now() + Duration::from_secs(86_400);
    agent.send(vec![applied_slice(tomorrow)]).await;
    becomes(&agent, PROGRAMMED, 2.0).await;
    assert_eq!(value(&agent, LONG_AGO), Some(2.0));
}

#[tokio::test]
async fn changes_pend_until_the_kernel_has_them() {
    let agent = Running::start();
    let series = |kind: &str, what: &str| format!("kubeproxy_sync_proxy_rules_{kind}_changes_{what}");
    agent.send(vec![list(vec![service("a", 1), service("b", 2)])]).await;
    becomes(&agent, &series("service", "pending"), 2.0).await;
    agent.send_lists(vec![service("a", 1), service("b", 2)]).await;
    agent.calls(1).await;
    becomes(&agent, &series("service", "pending"), 0.0).await;
    agent
        .send(vec![applied(service("c", 3)), applied_slice(Timestamp::now())])
        .await;
    becomes(&agent, &series("service", "total"), 5.0).await;
    becomes(&agent, &series("endpoint", "total"), 1.0).await;
    becomes(&agent, &series("service", "pending"), 0.0).await;
    becomes(&agent, &series("endpoint", "pending"), 0.0).await;
    let heard = |source: &str| format!(r#"lb_programming_duration_seconds_count{{source="{source}"}}"#);
    becomes(&agent, &heard("Service"), 3.0).await;
    becomes(&agent, &heard("EndpointSlice"), 2.0).await;
    becomes(&agent, &heard("Node"), 1.0).await;
    let synced = |what: &str| format!(r#"kubeproxy_sync_{what}proxy_rules_duration_seconds_count{{ip_family="IPv4"}}"#);
    becomes(&agent, &synced(""), 2.0).await;
    becomes(&agent, &synced("full_"), 1.0).await;
    becomes(&agent, &synced("partial_"), 1.0).await;
    // The second was about IPv4 alone.
    let v6 = r#"kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv6"}"#;
    assert_eq!(value(&agent, v6), Some(1.0));
}
