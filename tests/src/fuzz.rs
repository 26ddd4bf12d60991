//! Packets that nobody would send, through the real programs: generated, broken, and judged one by one.
//!
//! In reading order:
//!
//! * [`anatomy`]: what stands where in a packet.
//! * [`world`]: the services that packets meet, and what happens to them under way.
//! * [`programs`]: the programs, loaded and fed by hand.
//! * [`shadow`], [`pieces`], [`oracle`], [`compare`], [`refusal`], [`rows`]: what must become of a packet, and of the flow table.
//! * [`masquerade`]: what must become of packets for whose client the node speaks.
//! * [`build`], [`generate`], [`mutate`]: packets.
//! * [`script`], [`minimise`]: what happened, as a file, and less of it.

pub mod anatomy;
pub mod build;
pub mod compare;
pub mod generate;
pub mod masquerade;
pub mod minimise;
pub mod mutate;
pub mod oracle;
pub mod pieces;
pub mod programs;
pub mod refusal;
pub mod rows;
pub mod script;
pub mod shadow;
pub mod world;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

use self::anatomy::Anatomy;
use self::oracle::{Fate, Fault, Oracle, Sent};
use self::pieces::Datagram;
use self::programs::Programs;
use self::script::{Script, Step};
use self::shadow::Shadow;
use self::world::{Change, World};
use crate::capture::Capture;
use crate::netns::Netns;
use crate::patience::patient;

/// Steps of one run from an empty flow table: enough for flows to meet, few enough to be made fewer.
const EPISODE: usize = 300;

/// How long a packet that comes again is waited for: it is there at once, unless the kernel is busy.
const AGAIN: Duration = Duration::from_secs(2);

/// What becomes of a packet that no program sees.
const TOO_SHORT: &str = "too short";

/// Something that was not right.
#[derive(Clone, Debug)]
pub struct Found {
    /// What.
    pub fault: Fault,
    /// What happened, from an empty flow table on; the last step is the wrong one.
    pub steps: Vec<Step>,
}

/// How many packets had which fate.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    fates: BTreeMap<&'static str, u64>,
}

impl Tally {
    fn add(&mut self, fate: &'static str) {
        *self.fates.entry(fate).or_default() += 1;
    }

    /// How many had that one.
    #[must_use]
    pub fn of(&self, fate: &str) -> u64 {
        self.fates.get(fate).copied().unwrap_or(0)
    }

    /// All fates that are there, and how many packets had each.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.fates.iter().map(|(fate, count)| (*fate, *count))
    }

    /// How many packets there were. Those that the kernel runs no program on do not count.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.fates.values().sum::<u64>() - self.of(TOO_SHORT)
    }
}

/// Plays scripts, known and made up.
#[derive(Debug)]
pub struct Fuzzer {
    programs: Programs,
    /// At the link that programs are run on: what they send back to it.
    link: Capture,
    _netns: Netns,
    world: World,
    shadow: Shadow,
    seeds: Vec<Sent>,
    tally: Tally,
}

impl Fuzzer {
    /// Loads the programs. From then on the calling thread is in a network namespace of its own, whose loopback link is
    /// the one that the programs run on.
    pub fn new() -> Result<Self> {
        let netns = Netns::new("fuzz")?;
        let loopback = netns.netlink()?.link("lo")?;
        let link = Capture::start(&netns, &loopback)?;
        netns.enter()?;
        Ok(Self {
            programs: Programs::load()?,
            link,
            _netns: netns,
            world: World::new(),
            shadow: Shadow::default(),
            seeds: Vec::new(),
            tally: Tally::default(),
        })
    }

    /// Where the corpus is: what was found once, and packets that are worth to be broken.
    #[must_use]
    pub fn corpus() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
    }

    /// Lets the packets of a script be broken too.
    pub fn learn(&mut self, script: &Script) {
        self.seeds.extend(script.steps.iter().filter_map(|step| match step {
            Step::Packet(sent) => Some(sent.clone()),
            Step::Change(_) => None,
        }));
    }

    /// What became of all packets so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Plays steps from an empty flow table on, to the first that is not right.
    pub fn play(&mut self, steps: &[Step]) -> Result<Option<Found>> {
        self.begin()?;
        for (index, step) in steps.iter().enumerate() {
            if let Err(fault) = self.step(step)? {
                let steps = steps[..=index].to_vec();
                return Ok(Some(Found { fault, steps }));
            }
        }
        let fault = self.end()?.err();
        Ok(fault.map(|fault| Found {
            fault,
            steps: steps.to_vec(),
        }))
    }

    /// Makes up a few hundred steps, always the same for one seed but for what the programs leave to chance, and plays
    /// them.
    pub fn episode(&mut self, seed: u64) -> Result<Option<Found>> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        self.begin()?;
        let mut steps = Vec::with_capacity(EPISODE);
        let mut under_way = VecDeque::new();
        for _ in 0..EPISODE {
            let step = if rng.random_ratio(1, 25) {
                Step::Change(generate::change(&mut rng, &self.world))
            } else {
                if rng.random_ratio(1, 20) {
                    under_way.extend(generate::pieces(&mut rng, &self.world, &self.shadow));
                }
                let next = match rng.random_ratio(1, 2) {
                    true => under_way.pop_front(),
                    false => None,
                };
                Step::Packet(next.unwrap_or_else(|| generate::packet(&mut rng, &self.world, &self.shadow, &self.seeds)))
            };
            let right = self.step(&step)?;
            steps.push(step);
            if let Err(fault) = right {
                return Ok(Some(Found { fault, steps }));
            }
        }
        let fault = self.end()?.err();
        Ok(fault.map(|fault| Found { fault, steps }))
    }

    /// What is left in the end must be right too.
    fn end(&mut self) -> Result<Result<(), Fault>> {
        let frames = self.link.frames()?;
        if !frames.is_empty() {
            return Ok(Err(format!("{} packets came again for no reason", frames.len())));
        }
        rows::all(&mut self.programs, &self.shadow)
    }

    fn begin(&mut self) -> Result<()> {
        self.link.frames()?;
        self.programs.forget()?;
        self.world = World::new();
        self.world.write(&mut self.programs)?;
        self.shadow = Shadow::default();
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<Result<(), Fault>> {
        match step {
            Step::Packet(sent) => self.packet(sent),
            Step::Change(change) => {
                self.shadow.doubt();
                match change {
                    Change::Expire => {
                        rows::expire(&mut self.programs)?;
                        self.programs.expire_fragments()?;
                        self.shadow.datagrams.expire();
                    }
                    Change::Evict(row) => {
                        self.shadow.tear();
                        rows::evict(&mut self.programs, *row)?;
                    }
                    Change::Backend(..) | Change::Service(..) => self.world.change(&mut self.programs, change)?,
                }
                Ok(Ok(()))
            }
        }
    }

    fn packet(&mut self, sent: &Sent) -> Result<Result<(), Fault>> {
        let at = Instant::now();
        let out = self.programs.run(sent.program, &sent.bytes, sent.mark, sent.gso_size)?;
        let Some(out) = out else {
            self.tally.add(TOO_SHORT);
            return Ok(Ok(()));
        };
        let mut oracle = Oracle {
            world: &self.world,
            shadow: &mut self.shadow,
            at,
        };
        let fate = match oracle.judge(sent, &out) {
            Ok(fate) => fate,
            Err(fault) => return Ok(Err(fault)),
        };
        self.tally.add(match fate {
            Fate::Untouched => "untouched",
            Fate::Dropped => "dropped",
            Fate::Refused => "refused",
            Fate::Request(_) => "request",
            Fate::Answer => "answer",
            Fate::Error => "error",
            Fate::Piece => "piece",
            Fate::Released => "released",
        });
        match &fate {
            Fate::Request(ends) => match self.shadow.by_request(ends) {
                Some(flow) if flow.has_both_rows() => rows::pair(&mut self.programs, flow),
                _ => Ok(Ok(())),
            },
            Fate::Released => self.again(sent),
            _ => Ok(Ok(())),
        }
    }

    /// The first piece of a datagram that others wait for: they come again at the link, and are sent to the program
    /// once more, as that link would.
    fn again(&mut self, first: &Sent) -> Result<Result<(), Fault>> {
        let Some(packet) = Anatomy::of(&first.bytes, first.program.has_link_header()) else {
            return Ok(Ok(()));
        };
        let Some(datagram) = Datagram::of(&packet, first.program.is_egress()) else {
            return Ok(Ok(()));
        };
        // What is to be cut into segments, which no piece is, cannot become another.
        let can_become_others = first.gso_size == 0;
        let release = self
            .shadow
            .datagrams
            .release(datagram, Instant::now(), &first.bytes, can_become_others);
        if !release.is_certain
            && let Some((from, to)) = packet.ends(&first.bytes)
        {
            self.shadow.begin_unseen((packet.protocol, from, to));
        }
        for bytes in release.frames {
            let within = if release.is_certain {
                patient(AGAIN)
            } else {
                Duration::ZERO
            };
            let Some(frame) = self.link.next(within)? else {
                return Ok(match release.is_certain {
                    true => Err("a piece that was held did not come again".into()),
                    false => Ok(()),
                });
            };
            if frame.bytes != without_outer_tag(&bytes) {
                return Ok(Err(
                    "a piece that was held came again as another, or out of order".into()
                ));
            }
            let again = Sent { bytes, ..first.clone() };
            if let Err(fault) = self.packet(&again)? {
                return Ok(Err(fault));
            }
        }
        if !release.is_certain {
            self.link.frames()?;
        }
        Ok(Ok(()))
    }
}

/// A frame as the kernel shows it to whoever listens at the link that it comes in by: with the first VLAN tag beside it.
fn without_outer_tag(frame: &[u8]) -> Vec<u8> {
    match frame.get(12..14) {
        Some([0x81, 0x00] | [0x88, 0xa8]) => [&frame[..12], &frame[16..]].concat(),
        _ => frame.to_vec(),
    }
}
