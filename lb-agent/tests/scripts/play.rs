//! Plays a script to the model and compares what comes of it.

use anyhow::{Context as _, ensure};
use lb_agent::{
    desired::{State, text},
    model::{Cluster, Event, Rules},
};

use crate::script::{Script, Step};

/// The most events of which every order is played, which are 120.
const MOST_IN_ANY_ORDER: usize = 5;

pub(crate) fn play(script: Script) -> anyhow::Result<()> {
    let mut before: Vec<Vec<Event>> = Vec::new();
    for step in script.steps {
        let orders = if step.in_any_order {
            ensure!(
                step.events.len() <= MOST_IN_ANY_ORDER,
                "line {}: too many orders",
                step.line
            );
            permutations(&step.events)
        } else {
            vec![step.events.clone()]
        };
        for order in orders {
            let played = cluster_after(&script.rules, before.iter().chain([&order]))
                .and_then(|cluster| compare(&step, &cluster));
            played.with_context(|| match step.in_any_order {
                false => format!("line {}", step.line),
                true => format!("line {}, in the order {order:#?}", step.line),
            })?;
        }
        before.push(step.events);
    }
    Ok(())
}

/// The model after these batches, of which each was one change to the plane.
fn cluster_after<'a>(rules: &Rules, batches: impl Iterator<Item = &'a Vec<Event>>) -> anyhow::Result<Cluster> {
    let mut cluster = Cluster::new(rules.clone());
    let mut mirror = State::default();
    for batch in batches {
        for event in batch {
            cluster.apply(event.clone());
        }
        mirror.apply(cluster.take_change());
        ensure!(mirror == *cluster.state(), "the changes do not add up to the state");
    }
    Ok(cluster)
}

fn compare(step: &Step, cluster: &Cluster) -> anyhow::Result<()> {
    let lines: Vec<String> = text::lines(cluster.state()).iter().map(text::Line::to_string).collect();
    let health_checks = cluster.health_checks().iter();
    let health_checks: Vec<String> = health_checks
        .map(|(service, check)| {
            let counts = check.local_endpoints.iter();
            let counts: Vec<String> = counts.map(|(family, count)| format!("{family}:{count}")).collect();
            format!("{service} port={} endpoints={}", check.port, counts.join(","))
        })
        .collect();
    let difference = difference(&step.expected, &lines) + &difference(&step.health_checks, &health_checks);
    ensure!(
        difference.is_empty(),
        "not as expected (-) but otherwise (+)\n{difference}"
    );
    Ok(())
}

/// Empty if there is none; else all that is expected and all that is there.
fn difference(expected: &[String], found: &[String]) -> String {
    if expected == found {
        return String::new();
    }
    let mut difference = String::new();
    for line in expected {
        let mark = if found.contains(line) { ' ' } else { '-' };
        difference += &format!("{mark} {line}\n");
    }
    for line in found.iter().filter(|line| !expected.contains(line)) {
        difference += &format!("+ {line}\n");
    }
    difference
}

fn permutations(events: &[Event]) -> Vec<Vec<Event>> {
    let [first, rest @ ..] = events else {
        return vec![Vec::new()];
    };
    let mut all = Vec::new();
    for order in permutations(rest) {
        for place in 0..=order.len() {
            let mut longer = order.clone();
            longer.insert(place, first.clone());
            all.push(longer);
        }
    }
    all
}
