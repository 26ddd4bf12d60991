//! How a script is written.
//!
//! A comment on top says what the behaviour is, and after `kube-proxy:` which rule of kube-proxy
//! makes it so. Then come YAML documents, in the order in which things happen:
//!
//! * A Kubernetes object, as `kubectl apply` takes it: it is new or different.
//! * A list of objects of one kind, such as a `ServiceList`: a watch has begun anew and this is
//!   all that there is.
//! * `delete: Service web`: it is gone.
//! * `nodeAddresses: […]`: the node's links have these addresses, and no others.
//! * `agent: {…}`, before anything else: the agent's settings, as in its file.
//! * `expect: …`: what is served from here on, all of it, in the form of
//!   [`lb_agent::desired::text`]. What came since the last `expect` is one batch. Beside it:
//!   * `in any order: true`: the batch is played in every order, always with this result;
//!   * `skipped: […]`: what could not be read in the batch: kind, name, and the field where it was
//!     only that;
//!   * `health checks: […]`: what load balancers are told.

use std::{collections::BTreeSet, mem, net::IpAddr};

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lb_agent::{
    config::{Config, Settings},
    model::{AnyService, EndpointSlice, Event, Kind, Node, ObjectName, Rules, ServiceCidr, Update},
    objects::decode::{Decode, Decoded, object_name},
};
use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

/// The node on which the scripts play.
const THIS_NODE: &str = "this-node";

/// What happens, and what comes of it.
pub(crate) struct Script {
    pub(crate) rules: Rules,
    pub(crate) steps: Vec<Step>,
}

/// A batch of events and what is served after it.
pub(crate) struct Step {
    pub(crate) events: Vec<Event>,
    /// Whether the order of the events must not matter.
    pub(crate) in_any_order: bool,
    pub(crate) expected: Vec<String>,
    pub(crate) health_checks: Vec<String>,
    /// Line of the expectation in the file.
    pub(crate) line: u64,
}

/// A document that ends a step.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectation {
    expect: String,
    #[serde(rename = "in any order", default)]
    in_any_order: bool,
    #[serde(default)]
    skipped: Vec<String>,
    #[serde(rename = "health checks", default)]
    health_checks: Vec<String>,
}

/// A document that is neither an object nor ends a step.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Directive {
    Agent(Box<Settings>),
    Delete(String),
    NodeAddresses(BTreeSet<IpAddr>),
}

pub(crate) fn parse(text: &str) -> anyhow::Result<Script> {
    let mut header = text.lines().take_while(|line| line.starts_with('#'));
    ensure!(
        header.any(|line| line.starts_with("# kube-proxy: ")),
        "the comment on top names no rule of kube-proxy"
    );
    let documents: Vec<Spanned<Value>> = serde_saphyr::from_multiple(text)?;
    let mut parser = Parser::default();
    for document in documents {
        let line = document.referenced.line();
        parser
            .document(document.value, line)
            .with_context(|| format!("line {line}"))?;
    }
    ensure!(
        parser.batch.events.is_empty(),
        "nothing is expected of what happens last"
    );
    ensure!(!parser.steps.is_empty(), "the script expects nothing");
    Ok(Script {
        rules: parser.rules,
        steps: parser.steps,
    })
}

/// What has been read so far.
#[derive(Default)]
struct Parser {
    rules: Rules,
    steps: Vec<Step>,
    batch: Batch,
}

impl Parser {
    fn document(&mut self, document: Value, line: u64) -> anyhow::Result<()> {
        if document.get("expect").is_some() {
            let batch = mem::take(&mut self.batch);
            self.steps.push(end_step(document, batch, line)?);
        } else if document.get("kind").is_some() {
            self.batch.add(document)?;
        } else {
            match serde_json::from_value(document)? {
                Directive::Agent(settings) => {
                    ensure!(
                        self.steps.is_empty() && self.batch.events.is_empty(),
                        "the agent has been started already"
                    );
                    self.rules = Config::new(*settings)?.rules;
                }
                Directive::Delete(object) => self.batch.events.push(deletion(&object)?),
                Directive::NodeAddresses(addresses) => {
                    self.batch.events.push(Event::NodeAddresses(addresses));
                }
            }
        }
        Ok(())
    }
}

fn end_step(document: Value, batch: Batch, line: u64) -> anyhow::Result<Step> {
    let expectation: Expectation = serde_json::from_value(document)?;
    ensure!(
        batch.skipped == expectation.skipped,
        "skipped is {:?}, and {:?} is expected",
        batch.skipped,
        expectation.skipped
    );
    Ok(Step {
        events: batch.events,
        in_any_order: expectation.in_any_order,
        expected: expectation.expect.lines().map(str::to_owned).collect(),
        health_checks: expectation.health_checks,
        line,
    })
}

/// What has happened since the last expectation.
#[derive(Default)]
struct Batch {
    events: Vec<Event>,
    skipped: Vec<String>,
}

impl Batch {
    fn add(&mut self, object: Value) -> anyhow::Result<()> {
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        match kind {
            "Service" => self.apply::<AnyService>(object),
            "ServiceList" => self.replace::<AnyService>(object),
            "EndpointSlice" => self.apply::<EndpointSlice>(object),
            "EndpointSliceList" => self.replace::<EndpointSlice>(object),
            "Node" => self.apply::<Node>(object),
            "NodeList" => self.replace::<Node>(object),
            "ServiceCIDR" => self.apply::<ServiceCidr>(object),
            "ServiceCIDRList" => self.replace::<ServiceCidr>(object),
            kind => bail!("a service proxy reads no {kind}"),
        }
    }

    /// As the watch takes what a server sends.
    fn apply<T: Decode>(&mut self, object: Value) -> anyhow::Result<()> {
        let update = match self.read::<T>(object)? {
            (_, Some(Decoded::Object { object, .. })) => Update::Apply(object),
            (name, Some(Decoded::Ignored(_))) => Update::Delete(name),
            (_, None) => return Ok(()),
        };
        self.events.push(T::event(update));
        Ok(())
    }

    fn replace<T: Decode>(&mut self, mut list: Value) -> anyhow::Result<()> {
        let items = list.get_mut("items").map(Value::take);
        let items = items.and_then(|items| match items {
            Value::Array(items) => Some(items),
            _ => None,
        });
        let (mut objects, mut unreadable) = (Vec::new(), Vec::new());
        for item in items.context("a list has items")? {
            match self.read::<T>(item)? {
                (_, Some(Decoded::Object { object, .. })) => objects.push(object),
                (_, Some(Decoded::Ignored(_))) => {}
                (name, None) => unreadable.push(name),
            }
        }
        self.events.push(T::event(Update::Replace { objects, unreadable }));
        Ok(())
    }

    /// An object, or `None` for one that cannot be read.
    fn read<T: Decode>(&mut self, object: Value) -> anyhow::Result<(ObjectName, Option<Decoded<T>>)> {
        let metadata = object.get("metadata").cloned().context("no metadata")?;
        let name = object_name(T::KIND, &serde_json::from_value::<ObjectMeta>(metadata)?);
        let decoded = match serde_json::from_value(object) {
            Ok(wire) => T::decode(wire, THIS_NODE).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let mut skip = |what: &str| self.skipped.push(format!("{} {name}{what}", T::KIND));
        match &decoded {
            Ok(Decoded::Object { skipped, .. }) => {
                for part in skipped {
                    let part = part.to_string();
                    let (path, _) = part.split_once(':').unwrap_or((&part, ""));
                    skip(&format!(" {path}"));
                }
            }
            Ok(Decoded::Ignored(_)) => {}
            Err(_) => skip(""),
        }
        Ok((name, decoded.ok()))
    }
}

/// The name of an object, of a kind that may have no namespaces.
fn in_its_namespace(kind: Kind, mut name: ObjectName) -> ObjectName {
    match kind {
        Kind::Service | Kind::EndpointSlice | Kind::Pod => {}
        Kind::ServiceCidr | Kind::Node => name.namespace.clear(),
    }
    name
}

fn deletion(object: &str) -> anyhow::Result<Event> {
    fn of<T: Decode>(name: ObjectName) -> Event {
        T::event(Update::Delete(in_its_namespace(T::KIND, name)))
    }
    let (kind, name) = object.split_once(' ').context("neither kind nor name")?;
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    let name = ObjectName::new(namespace, name);
    Ok(match kind {
        "Service" => of::<AnyService>(name),
        "EndpointSlice" => of::<EndpointSlice>(name),
        "ServiceCIDR" => of::<ServiceCidr>(name),
        "Node" => of::<Node>(name),
        _ => bail!("a service proxy reads no {kind}"),
    })
}
