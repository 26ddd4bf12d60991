//! Links' turns, with a plane that writes down what it is asked.

use std::sync::{Arc, Mutex};

use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::*;
use crate::{kernel::links::Bridge, plane::PlaneError};

/// Long enough that what comes before a look has been done.
const LOOK_EACH: Duration = Duration::from_secs(4);

/// What a plane was asked, and what it is to answer.
#[derive(Default)]
struct Record {
    calls: Vec<String>,
    /// Names of links that it fails with.
    refuse: Vec<&'static str>,
    /// Names of links that are to be told again.
    disturbed: Vec<&'static str>,
    waits: bool,
    minds_bridges: bool,
}

#[derive(Clone, Default)]
struct FakePlane(Arc<Mutex<Record>>);

impl FakePlane {
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().calls)
    }

    fn refuse(&self, names: &[&'static str]) {
        self.0.lock().unwrap().refuse = names.to_vec();
    }
}

impl LinkPlane for FakePlane {
    fn link(&mut self, event: &LinkEvent, pace: Pace) -> Result<LinkState, PlaneError> {
        let mut record = self.0.lock().unwrap();
        if record.waits {
            return Ok(LinkState::Waiting);
        }
        let link = match event {
            LinkEvent::Is(link) => link,
            LinkEvent::Gone { index } => {
                record.calls.push(format!("gone {index}"));
                return Ok(LinkState::Gone);
            }
        };
        let (verb, state) = match pace {
            Pace::Steady => ("link", LinkState::Served),
            Pace::Hurried => ("quick", LinkState::ServedInHaste),
        };
        record.calls.push(format!("{verb} {}", link.name));
        if record.refuse.contains(&link.name.as_str()) {
            return Err(PlaneError::kernel(
                "a program",
                io::Error::from(io::ErrorKind::PermissionDenied),
            ));
        }
        Ok(state)
    }

    fn stop_waiting(&mut self) {
        self.0.lock().unwrap().waits = false;
    }

    fn look(&mut self, link: &Link) -> bool {
        let mut record = self.0.lock().unwrap();
        record.calls.push(format!("look {}", link.name));
        record.disturbed.contains(&link.name.as_str())
    }

    fn minds_bridges(&self) -> bool {
        self.0.lock().unwrap().minds_bridges
    }
}

struct Running {
    plane: FakePlane,
    notices: mpsc::Sender<Notice>,
    is_filled: watch::Sender<bool>,
    all_served: watch::Receiver<bool>,
    paths: watch::Receiver<BTreeMap<u32, Link>>,
    standings: watch::Receiver<Standings>,
    task: JoinHandle<()>,
}

impl Running {
    fn start() -> Self {
        Self::with(FakePlane::default())
    }

    fn with(plane: FakePlane) -> Self {
        Self::begun_after(Duration::ZERO, plane)
    }

    /// The first turn comes after that time, if it is not told before that all links are known.
    fn begun_after(telling: Duration, plane: FakePlane) -> Self {
        let (notices, receiver) = mpsc::channel(1024);
        let (is_filled, filled) = watch::channel(false);
        let (sender, all_served) = watch::channel(false);
        let (paths_sender, paths) = watch::channel(BTreeMap::new());
        let (standings_sender, standings) = watch::channel(Standings::default());
        let told = Told {
            paths: paths_sender,
            bridge_port: watch::channel(None).0,
            standings: standings_sender,
        };
        let mut links = Links::new(plane.clone(), told);
        links.telling = telling;
        links.look_each = LOOK_EACH;
        links.next_look = Instant::now() + LOOK_EACH;
        let task = tokio::spawn(links.run(receiver, filled, sender));
        Self {
            plane,
            notices,
            is_filled,
            all_served,
            paths,
            standings,
            task,
        }
    }

    /// All at once, before any has its turn.
    fn tell(&self, notices: impl IntoIterator<Item = Notice>) {
        for notice in notices {
            self.notices.try_send(notice).unwrap();
        }
    }

    /// The calls, once there are as many as that.
    async fn calls(&self, count: usize) -> Vec<String> {
        let mut calls = Vec::new();
        for _ in 0..1000 {
            calls.extend(self.plane.calls());
            if calls.len() >= count {
                return calls;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{count} calls expected: {calls:?}");
    }
}

fn link_at(index: u32, name: &str) -> Notice {
    Notice::Link(LinkEvent::Is(Link {
        index,
        name: name.into(),
        role: Role::Pod,
        is_ip_only: false,
        is_by_rule: false,
        bridge: None,
    }))
}

fn gone(index: u32) -> Notice {
    Notice::Link(LinkEvent::Gone { index })
}

#[tokio::test]
async fn a_link_that_fails_is_tried_again() {
    let links = Running::start();
    links.plane.refuse(&["veth0"]);
    links.tell([link_at(7, "veth0")]);
    assert_eq!(links.calls(2).await, ["link veth0", "link veth0"]);
    let standings = links.standings.borrow().clone();
    assert!(standings.errors() > 0);
    assert!(
        standings
            .counts()
            .any(|count| count == ((Role::Pod, Standing::Failed), 1))
    );
    links.plane.refuse(&[]);
    assert_eq!(links.calls(1).await, ["link veth0"]);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(links.plane.calls(), [""; 0]);
    let served: Vec<_> = links
        .standings
        .borrow()
        .counts()
        .filter(|(_, count)| *count > 0)
        .collect();
    assert_eq!(served, [((Role::Pod, Standing::Served), 1)]);
}

#[tokio::test]
async fn a_link_that_is_gone_is_not_tried_again() {
    let links = Running::start();
    links.plane.refuse(&["veth0"]);
    links.tell([link_at(7, "veth0")]);
    assert_eq!(links.calls(1).await, ["link veth0"]);
    links.tell([gone(7)]);
    assert_eq!(links.calls(1).await, ["gone 7"]);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(links.plane.calls(), [""; 0]);
}

#[tokio::test]
async fn a_link_that_changes_or_goes_before_its_turn_has_one_turn() {
    let links = Running::start();
    links.tell([
        link_at(5, "veth0"),
        link_at(6, "veth1"),
        link_at(5, "renamed"),
        link_at(7, "veth2"),
        gone(6),
    ]);
    assert_eq!(links.calls(3).await, ["link renamed", "gone 6", "link veth2"]);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(links.plane.calls(), [""; 0]);
}

#[tokio::test]
async fn tunnels_have_the_first_turns() {
    let links = Running::begun_after(LOOK_EACH, FakePlane::default());
    let with = |index, name: &str, role| match link_at(index, name) {
        Notice::Link(LinkEvent::Is(link)) => Notice::Link(LinkEvent::Is(Link { role, ..link })),
        other => other,
    };
    for notice in [
        with(2, "eth0", Role::Uplink),
        with(7, "veth0", Role::Pod),
        with(9, "vxlan0", Role::Tunnel),
        Notice::AllTold,
    ] {
        links.tell([notice]);
        yield_now().await;
    }
    assert_eq!(links.calls(3).await, ["link vxlan0", "link eth0", "link veth0"]);
}

#[tokio::test]
async fn links_that_the_plane_puts_off_are_told_again_when_it_is_filled() {
    let plane = FakePlane::default();
    plane.0.lock().unwrap().waits = true;
    let mut links = Running::with(plane);
    links.tell([link_at(5, "veth0"), link_at(6, "veth1")]);
    sleep(Duration::from_millis(50)).await;
    links.tell([gone(6), link_at(5, "renamed"), gone(8), Notice::AllTold]);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(links.plane.calls(), [""; 0]);
    assert!(!*links.all_served.borrow(), "they are not served yet");
    links.is_filled.send(true).unwrap();
    assert_eq!(links.calls(3).await, ["link renamed", "gone 6", "gone 8"]);
    links.all_served.changed().await.unwrap();
    assert!(*links.all_served.borrow());
}

#[tokio::test]
async fn all_are_served_when_each_that_was_there_at_the_start_has_had_its_turn() {
    let mut links = Running::start();
    links.tell([link_at(5, "veth0"), link_at(6, "veth1")]);
    assert_eq!(links.calls(2).await, ["link veth0", "link veth1"]);
    assert!(!*links.all_served.borrow(), "there may be more");
    links.plane.refuse(&["veth2"]);
    links.tell([link_at(7, "veth2"), Notice::AllTold]);
    // One that fails holds up nobody.
    links.all_served.changed().await.unwrap();
    assert_eq!(links.plane.calls(), ["link veth2"]);
}

#[tokio::test]
async fn many_at_once_are_served_in_haste_and_again_once_it_is_quiet() {
    let links = Running::start();
    let names: Vec<String> = (0..20).map(|n| format!("veth{n}")).collect();
    links.tell(names.iter().zip(1..).map(|(name, index)| link_at(index, name)));
    let calls = links.calls(20).await;
    let verb = |n: usize| if n < STEADY_AT_ONCE as usize { "link" } else { "quick" };
    let expected: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(n, name)| format!("{} {name}", verb(n)))
        .collect();
    assert_eq!(calls, expected, "none waits for time");

    // One of them goes meanwhile, and has no other turn.
    links.tell([gone(20)]);
    let rest = &names[STEADY_AT_ONCE as usize..19];
    let calls = links.calls(1 + rest.len()).await;
    let expected = ["gone 20".to_owned()]
        .into_iter()
        .chain(rest.iter().map(|name| format!("link {name}")));
    assert_eq!(calls, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn links_are_looked_at_and_told_again_where_something_was_done() {
    let links = Running::start();
    links.tell([link_at(5, "veth0"), link_at(6, "veth1"), gone(5), link_at(7, "veth2")]);
    assert_eq!(links.calls(3).await.len(), 3);
    links.plane.0.lock().unwrap().disturbed = vec!["veth2"];
    let mut calls = links.calls(3).await;
    links.plane.0.lock().unwrap().disturbed = Vec::new();
    calls.sort_unstable();
    assert_eq!(calls, ["link veth2", "look veth1", "look veth2"]);
}

#[tokio::test]
async fn uplinks_and_tunnels_are_told_of_and_pods_are_not() {
    let mut links = Running::start();
    let with = |index, role| {
        Notice::Link(LinkEvent::Is(Link {
            index,
            name: format!("link{index}"),
            role,
            is_ip_only: false,
            is_by_rule: false,
            bridge: None,
        }))
    };
    let mut told_after = async |notices: &[Notice]| {
        links.tell(notices.to_vec());
        sleep(Duration::from_millis(50)).await;
        links.paths.borrow_and_update().keys().copied().collect::<Vec<_>>()
    };
    let all = [with(1, Role::Uplink), with(2, Role::Pod), with(3, Role::Tunnel)];
    assert_eq!(told_after(&all).await, [1, 3]);
    assert_eq!(told_after(&[with(1, Role::Pod), with(2, Role::Uplink)]).await, [2, 3]);
    assert_eq!(told_after(&[gone(3), gone(2)]).await, [0; 0]);
}

#[tokio::test]
async fn another_bridge_is_news_only_to_a_plane_that_minds_bridges() {
    let in_bridge = |name: &str, has_only_pods| match link_at(7, name) {
        Notice::Link(LinkEvent::Is(link)) => Notice::Link(LinkEvent::Is(Link {
            bridge: Some(Bridge {
                index: 3,
                has_only_pods,
            }),
            ..link
        })),
        other => other,
    };
    for (minds_bridges, more) in [(false, &[][..]), (true, &["link veth0", "link veth0"])] {
        let links = Running::start();
        links.plane.0.lock().unwrap().minds_bridges = minds_bridges;
        for notice in [
            link_at(7, "veth0"),
            in_bridge("veth0", true),
            in_bridge("veth0", false),
            in_bridge("veth1", false),
        ] {
            links.tell([notice]);
            sleep(Duration::from_millis(50)).await;
        }
        let expected = [&["link veth0"][..], more, &["link veth1"]].concat();
        assert_eq!(links.plane.calls(), expected, "minds: {minds_bridges}");
        // After messages were lost, what seems the same may be another link.
        links.tell([in_bridge("veth1", false)]);
        assert_eq!(links.calls(1).await, ["link veth1"]);
    }
}

#[tokio::test]
async fn it_ends_when_nobody_tells_of_links_any_more() {
    let links = Running::start();
    drop(links.notices);
    timeout(Duration::from_secs(10), links.task).await.unwrap().unwrap();
}

#[test]
fn a_link_every_quarter_of_a_second_is_never_hurried() {
    let start = Instant::now();
    let mut budget = Budget::new(start);
    assert!((0..100).all(|n| budget.pace(start + STEADY_EACH * n) == Pace::Steady));
    let later = start + STEADY_EACH * 100;
    let steady = (0..100).filter(|_| budget.pace(later) == Pace::Steady).count();
    assert_eq!(steady, STEADY_AT_ONCE as usize);
    assert_eq!(budget.pace(later + STEADY_EACH / 2), Pace::Hurried);
    assert_eq!(budget.pace(later + STEADY_EACH), Pace::Steady);
    assert_eq!(budget.ample_from(later + STEADY_EACH), later + STEADY_EACH * 9);
}
