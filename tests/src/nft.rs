//! Maps of the packet filter that know frontends, as `nft` itself lists them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::ipvs::Protocol;
use crate::netns::Netns;
use crate::process;

/// A frontend, as key of a map.
pub type Key = (Protocol, SocketAddr);

/// The maps of a table whose keys are address, protocol and port, by their names. A value is as `nft` writes it in JSON.
pub fn frontend_maps(netns: &Netns, table: &str) -> Result<BTreeMap<String, BTreeMap<Key, Value>>> {
    let mut command = Command::new("nft");
    command.args(["--json", "list", "table"]).args(table.split(' '));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = process::spawn(command, netns, None)?.wait_with_output()?;
    if !output.status.success() {
        bail!(
            "nft list table {table}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let listing: Value = serde_json::from_slice(&output.stdout).context("what nft prints")?;
    let objects = listing["nftables"].as_array().context("nft lists no objects")?;
    let mut maps = BTreeMap::new();
    for map in objects.iter().filter_map(|object| object.get("map")) {
        let types = map["type"].as_array().map(Vec::as_slice).unwrap_or_default();
        if !matches!(types, [_, protocol, port] if protocol == "inet_proto" && port == "inet_service") {
            continue;
        }
        let name = map["name"].as_str().context("a map without a name")?;
        let elements = map["elem"].as_array().map(Vec::as_slice).unwrap_or_default();
        let elements = elements.iter().map(element).collect::<Result<_>>();
        maps.insert(name.to_owned(), elements.with_context(|| format!("the map {name}"))?);
    }
    Ok(maps)
}

fn element(element: &Value) -> Result<(Key, Value)> {
    let reading = || format!("the element {element}");
    // With a comment or a counter the key is an object of its own.
    let key = &element[0];
    let key = key.pointer("/elem/val").unwrap_or(key);
    let parts = key["concat"].as_array().with_context(reading)?;
    let [Value::String(ip), Value::String(protocol), port] = parts.as_slice() else {
        bail!("{} has no address, protocol and port", reading());
    };
    let ip: IpAddr = ip.parse().with_context(reading)?;
    let port = port.as_u64().and_then(|port| u16::try_from(port).ok());
    let protocol = match protocol.as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => bail!("{} is of no protocol that is known", reading()),
    };
    let to = SocketAddr::new(ip, port.with_context(reading)?);
    Ok(((protocol, to), element[1].clone()))
}
