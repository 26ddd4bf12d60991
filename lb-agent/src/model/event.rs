//! What the model hears of.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use super::{AnyService, EndpointSlice, Node, ObjectName, Pod, ServiceCidr};

/// What has happened to the objects of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Update<T> {
    /// A complete list: what is not in it is gone.
    Replace {
        /// The objects.
        objects: Vec<T>,
        /// Objects that exist but could not be read. Their last good version stays.
        unreadable: Vec<ObjectName>,
    },
    /// An object is new or different.
    Apply(T),
    /// An object is gone.
    Delete(ObjectName),
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// To Services.
    Services(Update<AnyService>),
    /// To EndpointSlices.
    EndpointSlices(Update<EndpointSlice>),
    /// To ServiceCIDRs, whose names have an empty namespace. Services do not wait for them.
    ServiceCidrs(Update<ServiceCidr>),
    /// To Pods of this node that say something of their sockets. Services do not wait for them.
    Pods(Update<Pod>),
    /// The Node object of this node, or that there is none.
    Node(Option<Node>),
    /// There is a Node object of this node and it could not be read. The last good one stays.
    UnreadableNode,
    /// The addresses of this node's links, loopback ones among them: all of them, each time.
    NodeAddresses(BTreeSet<IpAddr>),
}

/// The kinds of objects that a service proxy reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Services.
    Service,
    /// EndpointSlices.
    EndpointSlice,
    /// ServiceCIDRs.
    ServiceCidr,
    /// This node's Node object.
    Node,
    /// Pods of this node.
    Pod,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Service,
        Self::EndpointSlice,
        Self::ServiceCidr,
        Self::Node,
        Self::Pod,
    ];

    /// Its name, as the API has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::ServiceCidr => "ServiceCIDR",
            Self::Node => "Node",
            Self::Pod => "Pod",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
