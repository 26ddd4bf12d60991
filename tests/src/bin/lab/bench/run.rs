//! A run: every scenario with every number of services, of all targets by turns.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};
use lb_tests::interrupt::Interrupted;
use lb_tests::{agent, interrupt, plane};

use super::cluster::Cluster;
use super::environment::Environment;
use super::journal::{self, Journal, Measured, Round};
use super::proxy::Proxy;
use super::recorder::Recorder;
use super::report::{self, Raw};
use super::scenario::{Begin, Effort, Name, Place, Scenario};
use super::site::Site;
use super::target::{self, Other, Target};
use super::{Compared, objects};
use crate::progress::{Step, say};

/// What a run is to measure.
struct Plan {
    scenarios: Vec<&'static dyn Scenario>,
    targets: Vec<Target>,
    services: Vec<usize>,
    endpoints: usize,
    rounds: u32,
    effort: Effort,
}

impl Plan {
    fn of(args: &Compared) -> Result<Self> {
        let names: BTreeSet<Name> = match args.scenarios.is_empty() {
            true => clap::ValueEnum::value_variants().iter().copied().collect(),
            false => args.scenarios.iter().copied().collect(),
        };
        let has_ipvs = plane::has_ipvs();
        let against = match args.against.is_empty() {
            true => Other::usual(has_ipvs),
            false => args.against.clone(),
        };
        ensure!(
            has_ipvs || !against.contains(&Other::Ipvs),
            "--against ipvs: this kernel has no IPVS: `modprobe ip_vs`, or `cargo xtask bench --kernel 6.12`"
        );
        let others = against.iter().flat_map(|other| other.targets()).copied();
        let targets: BTreeSet<Target> = Target::OURS.into_iter().chain(others).collect();
        let mut services = args.services.clone();
        if services.is_empty() {
            services = if args.quick {
                vec![10]
            } else {
                vec![1, 100, 1000, 10_000]
            };
        }
        services.sort_unstable();
        services.dedup();
        for number in &services {
            ensure!(
                (1..=objects::MOST).contains(number),
                "--services: {number} is none of 1 to {}",
                objects::MOST
            );
        }
        // Changes give a service others, up to four times.
        let most = objects::MOST_ENDPOINTS / 5 - 1;
        ensure!(
            (1..=most).contains(&args.endpoints),
            "--endpoints: {} is none of 1 to {most}",
            args.endpoints
        );
        let rounds = args.rounds.unwrap_or(if args.quick { 2 } else { 5 });
        ensure!(rounds > 0, "--rounds: there has to be one");
        Ok(Self {
            scenarios: names.into_iter().map(Name::scenario).collect(),
            targets: targets.into_iter().collect(),
            services,
            endpoints: args.endpoints,
            rounds,
            effort: if args.quick { Effort::Quick } else { Effort::Full },
        })
    }

    /// In words that two runs share if one can go on with the other.
    fn words(&self) -> String {
        let scenarios: Vec<&str> = self.scenarios.iter().map(|scenario| scenario.name()).collect();
        let targets: Vec<&str> = self.targets.iter().map(|target| target.name()).collect();
        let services: Vec<String> = self.services.iter().map(usize::to_string).collect();
        format!(
            "{} of {}, services {}, endpoints {}, rounds {}, {:?}",
            scenarios.join(" "),
            targets.join(" "),
            services.join(" "),
            self.endpoints,
            self.rounds,
            self.effort
        )
    }

    fn rounds_of(&self, scenario: &dyn Scenario, services: usize) -> impl Iterator<Item = Round> {
        let scenario = scenario.name().to_owned();
        (0..self.rounds).map(move |round| Round {
            scenario: scenario.clone(),
            services,
            round,
        })
    }
}

/// Measures, prints the summary, and writes what is to be written.
pub(super) fn run(args: &Compared) -> Result<()> {
    let plan = Plan::of(args)?;
    // Known at once, and not after everything has been built.
    agent::binary()?;
    let mut environment = Environment::now(plan.words())?;
    let folder = work_folder()?;
    let _lock = journal::lock(&folder)?;
    let journal_path = folder.join("journal");
    let run = format!("{}, {} of {:?}", plan.words(), environment.kernel, programs()?);
    let mut run = Run {
        journal: Journal::open(&journal_path, &run, args.from_scratch)?,
        states: folder.join("etcd"),
        offloads: None,
        plan,
    };
    if run.journal.rounds() > 0 {
        say(format_args!(
            "going on where the last run was interrupted: {} rounds are done (--from-scratch begins anew)",
            run.journal.rounds()
        ));
    }
    let measured = run.measure();
    if let Err(error) = measured {
        if error.is::<Interrupted>() {
            say("what has been measured is kept: the same command goes on with it");
        }
        return Err(error);
    }
    environment.offloads = run.offloads.take().unwrap_or_default();
    environment.date = super::environment::today();
    let raw = Raw::new(environment, run.journal.measured().clone());
    write(args, &raw)?;
    run.journal.close().map(drop)
}

fn write(args: &Compared, raw: &Raw) -> Result<()> {
    println!("{}", raw.summary());
    if let Some(path) = &args.json {
        report::json(path, &raw.rows())?;
    }
    let folder = match &args.report {
        Some(folder) => Some(folder.clone()),
        None if args.quick => None,
        None => Some(docs().join(raw.environment.folder())),
    };
    if let Some(folder) = folder {
        raw.write(&folder)?;
        say(format_args!("written to {}", folder.display()));
    }
    Ok(())
}

/// Where results are kept that are worth it.
fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .with_file_name("docs")
        .join("benchmarks")
}

/// Names another folder for what a run keeps.
const WORK_FOLDER: &str = "LB_BENCH_DIR";

/// Where a run keeps what the next one can go on with: in cargo's target folder, where this program is.
fn work_folder() -> Result<PathBuf> {
    if let Some(folder) = env::var_os(WORK_FOLDER) {
        return Ok(folder.into());
    }
    let me = env::current_exe().context("finding this program")?;
    let target = me.ancestors().nth(2).context("this program is in no target folder")?;
    Ok(target.join("bench"))
}

/// What tells these programs from those of another build: figures of the two are no figures of one run.
fn programs() -> Result<Vec<(u64, std::time::SystemTime)>> {
    let all = [agent::binary()?, env::current_exe().context("finding this program")?];
    let tell = |path: &PathBuf| {
        let file = fs::metadata(path).with_context(|| format!("looking at {}", path.display()))?;
        Ok((file.len(), file.modified().context("a file has a time")?))
    };
    all.iter().map(tell).collect()
}

/// It.
struct Run {
    plan: Plan,
    journal: Journal,
    states: PathBuf,
    offloads: Option<Vec<String>>,
}

impl Run {
    fn measure(&mut self) -> Result<()> {
        for services in self.plan.services.clone() {
            let mut left = self.plan.scenarios.clone();
            left.retain(|scenario| {
                let mut rounds = self.plan.rounds_of(*scenario, services);
                rounds.any(|round| !self.journal.has(&round))
            });
            if left.is_empty() {
                continue;
            }
            let cluster = Cluster::start(&self.states, services, self.plan.endpoints)?;
            let is_serving = |scenario: &&dyn Scenario| scenario.begin() == Begin::Serving;
            let (serving, cold): (Vec<_>, Vec<_>) = left.into_iter().partition(is_serving);
            if !serving.is_empty() {
                let mut sites = self.serve(&cluster, services)?;
                for scenario in serving {
                    self.take_turns(scenario, services, &cluster, |target, measure| {
                        let site = sites.get_mut(&target).context("it does not serve")?;
                        resume(site)?;
                        let measured = measure(site);
                        pause(site)?;
                        measured
                    })?;
                }
            }
            for scenario in cold {
                self.take_turns(scenario, services, &cluster, |target, measure| {
                    let mut site = Site::build(target, &cluster)?;
                    measure(&mut site)
                })?;
            }
        }
        Ok(())
    }

    /// Builds the sites of all targets one after the other, and lets each proxy rest once it serves.
    fn serve(&mut self, cluster: &Cluster, services: usize) -> Result<BTreeMap<Target, Site>> {
        let mut sites = BTreeMap::new();
        for target in self.plan.targets.clone() {
            let step = Step::start(format!("{target} with {services} services"));
            let served = Site::build(target, cluster).and_then(|mut site| {
                site.serve(cluster)?;
                pause(&site)?;
                Ok(site)
            });
            match served {
                Ok(site) => {
                    sites.insert(target, site);
                    step.done();
                }
                Err(error) if error.is::<Interrupted>() => return Err(error),
                // The others can still be compared.
                Err(error) => {
                    drop(step);
                    say(format_args!("      {error:#}"));
                    self.journal
                        .note(format!("{target} with {services} services: {error:#}"))?;
                }
            }
        }
        Ok(sites)
    }

    /// Measures a scenario in all rounds that are left. `with_site` is to call what it gets with the site of a target.
    fn take_turns(
        &mut self,
        scenario: &dyn Scenario,
        services: usize,
        cluster: &Cluster,
        mut with_site: impl FnMut(Target, &mut dyn FnMut(&mut Site) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let mut targets = self.plan.targets.clone();
        targets.retain(|target| scenario.applies_to(*target));
        let (endpoints, effort) = (self.plan.endpoints, self.plan.effort);
        let rounds: Vec<Round> = self.plan.rounds_of(scenario, services).collect();
        let title = format!("{} with {services} services", scenario.name());
        let parts = scenario.parts(services);
        let each = parts * targets.len();
        let step = Step::of(title, rounds.len() * each);
        for round in rounds {
            if self.journal.has(&round) {
                (0..each).for_each(|_| step.advance());
                continue;
            }
            let mut measured = Measured::default();
            for part in 0..parts {
                for target in target::order(&targets, round.round) {
                    interrupt::check()?;
                    let mut recorder = Recorder::new(scenario.name(), (services, endpoints), target, round.round);
                    let offloads = &mut self.offloads;
                    let result = with_site(target, &mut |site| {
                        if offloads.is_none() {
                            *offloads = Some(site.offloads()?.into_iter().map(str::to_owned).collect());
                        }
                        let mut place = Place {
                            site,
                            cluster,
                            services,
                            endpoints,
                            effort,
                        };
                        scenario.measure(part, &mut place, &mut recorder)
                    });
                    match result {
                        Ok(()) => {}
                        Err(error) if error.is::<Interrupted>() => return Err(error),
                        // The others can still be compared; what failed once would take its time again.
                        Err(error) => {
                            say(format_args!("      {target}: {error:#}"));
                            recorder.note(&format!("{error:#}"));
                            targets.retain(|other| *other != target);
                        }
                    }
                    measured.add(recorder.measured());
                    step.advance();
                }
            }
            self.journal.finish(round, measured)?;
        }
        step.done();
        Ok(())
    }
}

fn pause(site: &Site) -> Result<()> {
    site.proxy().map_or(Ok(()), Proxy::pause)
}

fn resume(site: &Site) -> Result<()> {
    site.proxy().map_or(Ok(()), Proxy::resume)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> Compared {
        Compared {
            scenarios: Vec::new(),
            against: vec![Other::None],
            services: Vec::new(),
            endpoints: 10,
            rounds: None,
            quick: false,
            json: None,
            report: None,
            from_scratch: false,
        }
    }

    #[test]
    fn a_plan_has_each_thing_once_and_in_order() {
        let plan = Plan::of(&Compared {
            scenarios: vec![Name::Request, Name::Connect, Name::Request],
            against: vec![Other::None, Other::Iptables],
            services: vec![100, 1, 100],
            ..args()
        });
        let plan = plan.unwrap();
        let names: Vec<&str> = plan.scenarios.iter().map(|scenario| scenario.name()).collect();
        assert_eq!(names, ["connect", "request"]);
        let ours = [Target::LbAgent, Target::LbAgentSocketAll];
        assert_eq!(plan.targets, [&ours[..], &[Target::Iptables, Target::None]].concat());
        assert_eq!((plan.services, plan.rounds), (vec![1, 100], 5));
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_what_can() {
        let refused = |args: Compared| Plan::of(&args).err().unwrap().to_string();
        let services = |services| Compared { services, ..args() };
        assert!(refused(services(vec![50_001])).contains("--services: 50001 is none of 1 to 50000"));
        assert!(refused(services(vec![0])).contains("--services"));
        let endpoints = |endpoints| Compared { endpoints, ..args() };
        assert!(refused(endpoints(50)).contains("--endpoints: 50 is none of 1 to 49"));
        let rounds = Compared {
            rounds: Some(0),
            ..args()
        };
        assert!(refused(rounds).contains("--rounds"));
    }
}
