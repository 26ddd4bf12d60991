//! Map `STAGE`: what the programs of one agent do while those of another are on the same hooks.
//!
//! An agent whose flow table cannot be shared puts its programs behind those of the agent before, which go on with the
//! flows that they have. Each knows nothing of the other's maps but this one: its name, its rows and what they mean
//! are the same in every layout, whatever [`LAYOUT_VERSION`](crate::maps::LAYOUT_VERSION) is.

/// Row: what the programs do, [`SERVES`], [`BESIDE`], [`DRAINS`] or [`DRAINS_TO_BE_CARRIED`].
pub const STAGE: u32 = 0;
/// Row: 0 or 1, another one than that of the programs before: by it their filters are known.
pub const SIDE: u32 = 1;
/// Row: since when they drain, in seconds of Unix time.
pub const SINCE: u32 = 2;
/// Row: 0 or 1. Of the ports that a client may be given, they take those whose distance from the first is even, or odd:
/// all that are in one flow table are of one kind, so that flows of two tables never meet. Where rows are carried over it
/// stays the same, else it is another one than that of the programs before.
pub const PORTS: u32 = 3;
/// How many rows there are.
pub const ROWS: u32 = 4;

/// How many sides there are.
pub const SIDES: u32 = 2;

/// They serve, and are the only ones of ours. What a new map says.
pub const SERVES: u32 = 0;
/// They serve whatever those before them let pass. A flow that begins gets a port of their kind: its backend knows the
/// client's own from flows of those before, whose rows these cannot see.
pub const BESIDE: u32 = 1;
/// They begin nothing and go on with what they have, until it is over.
pub const DRAINS: u32 = 2;
/// The same, and their rows are about to be carried over to those behind them.
pub const DRAINS_TO_BE_CARRIED: u32 = 3;
