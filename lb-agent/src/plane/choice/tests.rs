//! The table of decisions.

use super::*;
use crate::plane::probe::{Check, Found};

fn report(plane: PlaneName, missing: &str) -> PlaneReport {
    PlaneReport {
        plane,
        checks: vec![
            Check::of("capabilities", Ok(Found::good("all"))),
            Check::of("the rest", Ok(Found::missing(missing, "get it"))),
        ],
    }
}

/// What becomes of a node where these planes can be run.
fn on_node_with(usable: &[PlaneName], wanted: Wanted) -> anyhow::Result<Choice> {
    let (started, choice) = choose(wanted, |plane| {
        Ok(if usable.contains(&plane) {
            Ok(plane)
        } else {
            Err(report(plane, &format!("no {plane} here")))
        })
    })?;
    assert_eq!(started, choice.plane);
    Ok(choice)
}

#[test]
fn the_better_plane_that_the_node_can_run_serves_unless_the_settings_name_one() {
    use PlaneName::{Ebpf, Ipvs};
    let fallback = || Reason::Fallback {
        missing: vec!["the rest: no ebpf here".to_owned()],
    };
    let table = [
        (&[Ebpf, Ipvs][..], Wanted::Auto, Some((Ebpf, Reason::Preferred))),
        (&[Ebpf], Wanted::Auto, Some((Ebpf, Reason::Preferred))),
        (&[Ipvs], Wanted::Auto, Some((Ipvs, fallback()))),
        (&[], Wanted::Auto, None),
        (&[Ebpf, Ipvs], Wanted::Ebpf, Some((Ebpf, Reason::Configured))),
        (&[Ipvs], Wanted::Ebpf, None),
        (&[Ebpf, Ipvs], Wanted::Ipvs, Some((Ipvs, Reason::Configured))),
        (&[Ebpf], Wanted::Ipvs, None),
    ];
    for (usable, wanted, expected) in table {
        let choice = on_node_with(usable, wanted).ok();
        let expected = expected.map(|(plane, reason)| Choice { plane, reason });
        assert_eq!(choice, expected, "{wanted:?} where {usable:?} can be run");
    }
}

#[test]
fn where_none_can_be_run_each_that_was_tried_says_what_it_lacks() {
    let error = on_node_with(&[], Wanted::Auto).unwrap_err();
    assert_eq!(
        format!("{error:#}"),
        "\
this node cannot serve
ebpf cannot be run
  √ capabilities: all
  × the rest: no ebpf here
      get it
ipvs cannot be run
  √ capabilities: all
  × the rest: no ipvs here
      get it"
    );
    let error = on_node_with(&[PlaneName::Ebpf], Wanted::Ipvs).unwrap_err();
    let tried = &error.downcast_ref::<NoPlane>().unwrap().reports;
    assert_eq!(tried, &[report(PlaneName::Ipvs, "no ipvs here")]);
}

#[test]
fn a_probe_tells_of_each_plane_whatever_may_serve() {
    let good = PlaneReport {
        plane: PlaneName::Ebpf,
        checks: vec![Check::of("capabilities", Ok(Found::good("all")))],
    };
    let planes = || vec![good.clone(), report(PlaneName::Ipvs, "no ipvs here")];
    let node = would_choose(Wanted::Auto, planes());
    assert_eq!(
        node.to_string(),
        "\
ebpf can be run
  √ capabilities: all
ipvs cannot be run
  √ capabilities: all
  × the rest: no ipvs here
      get it
ebpf would serve: this node can do all that it needs"
    );
    let node = would_choose(Wanted::Ipvs, planes());
    assert_eq!(node.chosen, None);
    assert!(node.to_string().ends_with("\nthis node cannot serve"), "{node}");
}

#[test]
fn what_the_node_is_not_to_blame_for_is_no_reason_for_another_plane() {
    let mut tried = Vec::new();
    let error = choose(Wanted::Auto, |plane| -> anyhow::Result<Tried<()>> {
        tried.push(plane);
        anyhow::bail!("an lb-agent is running on this node")
    });
    assert_eq!(error.unwrap_err().to_string(), "an lb-agent is running on this node");
    assert_eq!(tried, [PlaneName::Ebpf]);
}

#[test]
fn the_reason_is_told_in_a_line() {
    let reason = |missing: &[&str]| Reason::Fallback {
        missing: missing.iter().map(|&line| line.to_owned()).collect(),
    };
    assert_eq!(
        reason(&["cgroup: none is mounted", "links: no TC"]).to_string(),
        "this node cannot run ebpf: cgroup: none is mounted; links: no TC"
    );
    let json = serde_json::to_string(&Choice {
        plane: PlaneName::Ipvs,
        reason: reason(&["links: no TC"]),
    });
    assert_eq!(
        json.unwrap(),
        r#"{"plane":"ipvs","reason":"fallback","missing":["links: no TC"]}"#
    );
}
