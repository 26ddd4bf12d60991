//! Packets that nobody would send: those that were once handled wrongly, and new ones every time.

use std::time::{SystemTime, UNIX_EPOCH};

use lb_tests::fuzz::{
    Found, Fuzzer,
    masquerade::Masquerade,
    minimise::minimise,
    script,
    script::{Script, Step},
};

/// Packets of each run here, unless `LB_FUZZ_PACKETS` says how many, for machines that are slow as emulated ones are;
/// `cargo xtask fuzz` sends a million.
const PACKETS: u64 = 150_000;
/// How often each script of the corpus is played: the programs leave some to chance.
const PLAYS: usize = 20;

fn corpus() -> Vec<Script> {
    let scripts = Script::read_all(&Fuzzer::corpus()).unwrap();
    assert!(!scripts.is_empty(), "the corpus is empty");
    scripts
}

#[track_caller]
fn fail(found: &Found) -> ! {
    panic!("{}", script::write(&found.fault, &found.steps));
}

#[test]
fn what_was_found_once_is_right_now() {
    let mut fuzzer = Fuzzer::new().unwrap();
    for script in corpus() {
        for _ in 0..PLAYS {
            if let Some(found) = fuzzer.play(&script.steps).unwrap() {
                eprintln!("{}:", script.name);
                fail(&found);
            }
        }
    }
}

fn packets() -> u64 {
    std::env::var("LB_FUZZ_PACKETS").map_or(PACKETS, |packets| packets.parse().unwrap())
}

/// Plays episodes from `seed` on. Every kind of end that a packet can have must come up, or what is made up is no use.
fn play(seed: u64) {
    let packets = packets();
    let mut fuzzer = Fuzzer::new().unwrap();
    corpus().iter().for_each(|script| fuzzer.learn(script));
    let mut episode = seed;
    while fuzzer.tally().packets() < packets {
        if let Some(found) = fuzzer.episode(episode).unwrap() {
            eprintln!("the episode with seed {episode}:");
            fail(&minimise(&mut fuzzer, found).unwrap());
        }
        episode += 1;
    }
    for fate in [
        "untouched",
        "dropped",
        "refused",
        "request",
        "answer",
        "error",
        "piece",
        "released",
    ] {
        let count = fuzzer.tally().of(fate);
        assert!(count > packets / 500, "only {count} packets: {fate}");
    }
}

#[test]
fn made_up_packets_the_same_every_time() {
    play(0);
}

/// In CI a change is judged by what it changed, so that there these are the same every time too.
const SEED_IN_CI: u64 = 1_000_000_000;

fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    match std::env::var_os("CI") {
        Some(_) => SEED_IN_CI,
        None => now.as_secs(),
    }
}

#[test]
fn made_up_packets_others_every_time() {
    let seed = seed();
    eprintln!("from seed {seed} on: `cargo xtask fuzz --seed {seed}` has the same");
    play(seed);
}

#[test]
fn whoever_the_node_speaks_for_is_answered() {
    let (seed, packets) = (seed(), packets() / 5);
    let tally = match Masquerade::new().unwrap().play(seed, packets).unwrap() {
        Ok(tally) => tally,
        Err((fault, sent)) => panic!("seed {seed}: {}", script::write(&fault, &[Step::Packet(sent)])),
    };
    for count in [tally.masqueraded, tally.untouched] {
        assert!(count > packets / 20, "{tally:?}");
    }
}
