//! Every key and value that crosses the border between the agent and its BPF programs, once.
//!
//! Rules of the border: `#[repr(C)]`, integers only, padding spelled out and always zero, addresses
//! and ports in network byte order, everything else in the byte order of the machine. Sizes and
//! offsets are asserted at compile time, on both sides, because both sides compile these files.
#![no_std]
#![forbid(unsafe_op_in_unsafe_fn)]

mod layout;

pub mod address;
pub mod affinity;
pub mod backend;
pub mod config;
pub mod counter;
pub mod event;
pub mod flow;
pub mod fragment;
pub mod hash;
pub mod maps;
pub mod net;
pub mod prefix;
pub mod service;
pub mod socket;
pub mod source;
pub mod stage;

pub use address::AddressValue;
pub use affinity::{AffinityKey, AffinityValue};
pub use backend::BackendValue;
pub use counter::Counter;
pub use event::Event;
pub use flow::{FlowKey, FlowValue};
pub use fragment::{FragmentKey, FragmentValue, HeldFragment};
pub use net::{Address, Port};
pub use prefix::{PrefixKey, Scoped};
pub use service::{Range, ServiceKey, ServiceValue, Verdict};
pub use socket::{Correspondents, Translation};
pub use source::SourceKey;
