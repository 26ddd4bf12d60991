//! `lab report`: loads the BPF object and prints what the kernel's verifier made of each program.

mod stack;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use aya::maps::MapInfo;
use aya::programs::{Program, ProgramInfo};
use aya::{Ebpf, EbpfLoader};
use aya_obj::{Object, ProgramSection};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print a JSON array instead of a table
    #[arg(long)]
    json: bool,
    /// The object [default: target/bpf/lb-ebpf.o]
    #[arg(long, value_name = "FILE", env = "LB_EBPF_OBJECT")]
    object: Option<PathBuf>,
}

/// A program.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// What it is attached to.
    kind: String,
    /// Instructions that the verifier looked at, on all paths; the limit is a million. Kernels before 5.16 do not say.
    verified: Option<u32>,
    /// Bytes of it as the kernel interprets it.
    xlated: Option<u32>,
    /// Bytes of machine code.
    jited: u32,
    /// Bytes of stack, of the limit of 512.
    stack: usize,
    maps: Vec<String>,
}

/// Prints it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let path = args.object.clone().unwrap_or_else(default_object);
    let bytes = std::fs::read(&path)
        .with_context(|| format!("reading {}: `cargo xtask build-ebpf` makes it", path.display()))?;
    let rows = report(&bytes)?;
    if args.json {
        println!(
            "{}",
            serde_json::to_string(&rows).context("writing the report as JSON")?
        );
    } else {
        println!("{}", table(&rows).trim_fmt());
    }
    Ok(())
}

/// Where `cargo xtask build-ebpf` puts it.
fn default_object() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .with_file_name("target")
        .join("bpf/lb-ebpf.o")
}

fn report(bytes: &[u8]) -> Result<Vec<Row>> {
    let mut object = Object::parse(bytes).context("parsing the object")?;
    let kinds: BTreeMap<String, String> = object
        .programs
        .iter()
        .map(|(name, program)| (name.clone(), kind(&program.section)))
        .collect();
    let stacks = stack::depths(&mut object)?;
    let mut loader = EbpfLoader::new();
    // As the agent loads it.
    loader.btf(None);
    // Storage of sockets has no size to be set.
    let sized = object.maps.iter().filter(|(_, map)| map.max_entries() > 0);
    for (name, _) in sized.filter(|(name, _)| !name.starts_with('.')) {
        loader.map_max_entries(name, 16);
    }
    let mut ebpf = loader.load(bytes).context("creating the maps")?;
    let mut rows = Vec::new();
    for (name, kind) in kinds {
        let info = load(&mut ebpf, &name)?;
        let stack = stacks.get(&name).copied().unwrap_or_default();
        rows.push(row(name, kind, stack, &info)?);
    }
    Ok(rows)
}

fn load(ebpf: &mut Ebpf, name: &str) -> Result<ProgramInfo> {
    let program = ebpf
        .program_mut(name)
        .with_context(|| format!("there is no program {name}"))?;
    let loaded = match program {
        Program::SchedClassifier(program) => program.load().and_then(|()| program.info()),
        Program::CgroupSockAddr(program) => program.load().and_then(|()| program.info()),
        Program::CgroupSock(program) => program.load().and_then(|()| program.info()),
        other => bail!(
            "{name} is of the type {:?}, which this report does not load",
            other.prog_type()
        ),
    };
    loaded.with_context(|| format!("loading {name}"))
}

fn row(name: String, kind: String, stack: usize, info: &ProgramInfo) -> Result<Row> {
    let mut maps = Vec::new();
    for id in info
        .map_ids()
        .context("listing the maps of a program")?
        .unwrap_or_default()
    {
        let map = MapInfo::from_id(id).context("looking at a map")?;
        maps.push(map.name_as_str().unwrap_or("?").to_owned());
    }
    maps.sort();
    Ok(Row {
        name,
        kind,
        verified: info.verified_instruction_count(),
        xlated: info.size_translated(),
        jited: info.size_jitted(),
        stack,
        maps,
    })
}

fn kind(section: &ProgramSection) -> String {
    match section {
        ProgramSection::SchedClassifier => "tc".into(),
        ProgramSection::CgroupSock { attach_type } => format!("cgroup/{attach_type:?}"),
        ProgramSection::CgroupSockAddr { attach_type } => format!("cgroup/{attach_type:?}"),
        other => format!("{other:?}"),
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["PROGRAM", "TYPE", "VERIFIED", "XLATED", "JITED", "STACK", "MAPS"]);
    let number = |value: Option<u32>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
    for row in rows {
        table.add_row([
            row.name.clone(),
            row.kind.clone(),
            number(row.verified),
            number(row.xlated),
            row.jited.to_string(),
            row.stack.to_string(),
            row.maps.join(" "),
        ]);
    }
    for column in table.column_iter_mut().skip(2).take(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
