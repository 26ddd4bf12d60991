//! The numbers of the interface, as `linux/ip_vs.h` and `linux/genetlink.h` have them.

/// `IPVS_GENL_NAME`, with the zero that ends it.
pub(super) const FAMILY_NAME: &[u8] = b"IPVS\0";
/// `IPVS_GENL_VERSION`.
pub(super) const FAMILY_VERSION: u8 = 1;

/// `GENL_ID_CTRL`: the family that knows the numbers of the others.
pub(super) const CONTROL_FAMILY: u16 = 0x10;
/// The version of the control family.
pub(super) const CONTROL_VERSION: u8 = 1;
/// `CTRL_CMD_GETFAMILY`.
pub(super) const CONTROL_GET_FAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_ID`, 16 bits.
pub(super) const CONTROL_FAMILY_ID: u16 = 1;
/// `CTRL_ATTR_FAMILY_NAME`, a string that ends with zero.
pub(super) const CONTROL_FAMILY_NAME: u16 = 2;

/// `NLMSGERR_ATTR_MSG` of `linux/netlink.h`: a refusal in words.
pub(super) const REFUSAL_TEXT: u16 = 1;

/// `IPVS_CMD_*`: what to do.
pub(super) mod command {
    pub(in super::super) const NEW_SERVICE: u8 = 1;
    pub(in super::super) const SET_SERVICE: u8 = 2;
    pub(in super::super) const DELETE_SERVICE: u8 = 3;
    pub(in super::super) const GET_SERVICE: u8 = 4;
    pub(in super::super) const NEW_DESTINATION: u8 = 5;
    pub(in super::super) const SET_DESTINATION: u8 = 6;
    pub(in super::super) const DELETE_DESTINATION: u8 = 7;
    pub(in super::super) const GET_DESTINATION: u8 = 8;
    pub(in super::super) const SET_CONFIG: u8 = 12;
    pub(in super::super) const GET_CONFIG: u8 = 13;
    pub(in super::super) const GET_INFO: u8 = 15;
}

/// `IPVS_CMD_ATTR_*`: the attributes of a command. Time-outs are 32 bits, in seconds.
pub(super) mod attribute {
    pub(in super::super) const SERVICE: u16 = 1;
    pub(in super::super) const DESTINATION: u16 = 2;
    pub(in super::super) const TIMEOUT_TCP: u16 = 4;
    pub(in super::super) const TIMEOUT_TCP_FIN: u16 = 5;
    pub(in super::super) const TIMEOUT_UDP: u16 = 6;
}

/// `IPVS_SVC_ATTR_*`: the attributes of a service.
pub(super) mod service {
    /// 16 bits, `AF_INET` or `AF_INET6`.
    pub(in super::super) const FAMILY: u16 = 1;
    /// 16 bits, `IPPROTO_*`.
    pub(in super::super) const PROTOCOL: u16 = 2;
    /// `union nf_inet_addr`: 16 bytes, of which an IPv4 address is the first four.
    pub(in super::super) const ADDRESS: u16 = 3;
    /// 16 bits in network byte order.
    pub(in super::super) const PORT: u16 = 4;
    /// 32 bits.
    pub(in super::super) const MARK: u16 = 5;
    /// A string that ends with zero, 16 bytes with it at most.
    pub(in super::super) const SCHEDULER: u16 = 6;
    /// `struct ip_vs_flags`: 32 bits of flags, 32 bits that say which of them are meant.
    pub(in super::super) const FLAGS: u16 = 7;
    /// 32 bits, in seconds.
    pub(in super::super) const TIMEOUT: u16 = 8;
    /// 32 bits: a mask in network byte order for IPv4, the length of a prefix for IPv6.
    pub(in super::super) const NETMASK: u16 = 9;
    /// A string that ends with zero.
    pub(in super::super) const PERSISTENCE_ENGINE: u16 = 11;
}

/// `IP_VS_SVC_F_*`: the flags of a service.
pub(super) mod flag {
    pub(in super::super) const PERSISTENT: u32 = 0x01;
    /// The kernel's own: the service is in its table.
    pub(in super::super) const HASHED: u32 = 0x02;
    pub(in super::super) const ONE_PACKET: u32 = 0x04;
    /// `IP_VS_SVC_F_SCHED1`, which is `IP_VS_SVC_F_SCHED_SH_FALLBACK` and `IP_VS_SVC_F_SCHED_MH_FALLBACK`.
    pub(in super::super) const FALLBACK: u32 = 0x08;
    /// `IP_VS_SVC_F_SCHED2`, which is `IP_VS_SVC_F_SCHED_SH_PORT` and `IP_VS_SVC_F_SCHED_MH_PORT`.
    pub(in super::super) const PORT: u32 = 0x10;
}

/// `IPVS_DEST_ATTR_*`: the attributes of a destination. All but the first two and the last are 32 bits.
pub(super) mod destination {
    /// As [`super::service::ADDRESS`].
    pub(in super::super) const ADDRESS: u16 = 1;
    /// 16 bits in network byte order.
    pub(in super::super) const PORT: u16 = 2;
    pub(in super::super) const FORWARD: u16 = 3;
    pub(in super::super) const WEIGHT: u16 = 4;
    pub(in super::super) const UPPER_THRESHOLD: u16 = 5;
    pub(in super::super) const LOWER_THRESHOLD: u16 = 6;
    pub(in super::super) const ACTIVE: u16 = 7;
    pub(in super::super) const INACTIVE: u16 = 8;
    pub(in super::super) const PERSISTENT: u16 = 9;
    /// 16 bits. Without it the family is that of the service (kernels before 3.18).
    pub(in super::super) const FAMILY: u16 = 11;
}

/// `IP_VS_CONN_F_*`: how packets get to a destination.
pub(super) mod forward {
    /// `IP_VS_CONN_F_FWD_MASK`: other bits are flags of connections.
    pub(in super::super) const METHOD: u32 = 0x07;
    pub(in super::super) const MASQUERADE: u32 = 0;
    pub(in super::super) const LOCAL: u32 = 1;
    pub(in super::super) const TUNNEL: u32 = 2;
    pub(in super::super) const DIRECT_ROUTE: u32 = 3;
    pub(in super::super) const BYPASS: u32 = 4;
}

/// `IPVS_INFO_ATTR_VERSION`: 32 bits, of which the low three bytes are the version.
pub(super) const INFO_VERSION: u16 = 1;
