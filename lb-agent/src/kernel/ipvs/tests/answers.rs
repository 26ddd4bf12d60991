//! How the kernel's messages are taken apart.

use netlink_packet_core::DecodeError;

use super::*;
use crate::kernel::ipvs::wire::{Answer, Refusal};

fn answers(bytes: &[u8]) -> Vec<Result<Answer<'_>, DecodeError>> {
    wire::answers(FAMILY, bytes).collect()
}

/// The only answer.
fn answer(bytes: &[u8]) -> Answer<'_> {
    let [answer] = answers(bytes).try_into().unwrap();
    answer.unwrap()
}

fn refused(errno: i32, text: Option<&str>) -> Content<'static> {
    Content::End(Err(Refusal {
        errno,
        text: text.map(str::to_owned),
    }))
}

/// The header of the request, as a refusal repeats it.
const REQUEST: [u8; 16] = [28, 0, 0, 0, 0x1c, 0, 0x05, 0, 9, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn an_acknowledgement() {
    let bytes = fields(&[
        &[36, 0, 0, 0],   // nlmsg_len
        &[2, 0],          // NLMSG_ERROR
        &[0x00, 0x01],    // NLM_F_CAPPED
        &[9, 0, 0, 0],    // nlmsg_seq
        &[0x39, 5, 0, 0], // nlmsg_pid: ours
        &[0, 0, 0, 0],    // error: none
        &REQUEST,
    ]);
    let expected = Answer {
        sequence: 9,
        is_inconsistent: false,
        content: Content::End(Ok(())),
    };
    assert_eq!(answer(&bytes), expected);
}

#[test]
fn a_refusal_without_words() {
    let bytes = fields(&[
        &[36, 0, 0, 0, 2, 0, 0x00, 0x01, 9, 0, 0, 0, 0, 0, 0, 0],
        &[0xef, 0xff, 0xff, 0xff], // error: -17, EEXIST
        &REQUEST,
    ]);
    assert_eq!(answer(&bytes).content, refused(17, None));
}

#[test]
fn a_refusal_with_words_behind_the_header_of_the_request() {
    let bytes = fields(&[
        &[56, 0, 0, 0, 2, 0],
        &[0x00, 0x03], // NLM_F_CAPPED | NLM_F_ACK_TLVS
        &[9, 0, 0, 0, 0, 0, 0, 0],
        &[0xea, 0xff, 0xff, 0xff], // error: -22, EINVAL
        &REQUEST,
        &[8, 0, 2, 0, 20, 0, 0, 0], // NLMSGERR_ATTR_OFFS
        &[9, 0, 1, 0],              // NLMSGERR_ATTR_MSG
        b"nope\0\0\0\0",
    ]);
    assert_eq!(answer(&bytes).content, refused(22, Some("nope")));
}

#[test]
fn a_refusal_with_words_behind_the_whole_request() {
    let bytes = fields(&[
        &[60, 0, 0, 0, 2, 0],
        &[0x00, 0x02], // NLM_F_ACK_TLVS
        &[9, 0, 0, 0, 0, 0, 0, 0],
        &[0xea, 0xff, 0xff, 0xff],
        &REQUEST,
        &[3, 1, 0, 0, 8, 0, 1, 0, 1, 2, 3, 4], // the rest of its 28 bytes
        &[9, 0, 1, 0],                         // NLMSGERR_ATTR_MSG
        b"nope\0\0\0\0",
    ]);
    assert_eq!(answer(&bytes).content, refused(22, Some("nope")));
}

#[test]
fn the_end_of_a_dump() {
    let bytes = fields(&[
        &[20, 0, 0, 0],
        &[3, 0],    // NLMSG_DONE
        &[0x02, 0], // NLM_F_MULTI
        &[9, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 0], // error: none
    ]);
    assert_eq!(answer(&bytes).content, Content::End(Ok(())));
}

#[test]
fn the_end_of_a_dump_that_failed() {
    let bytes = fields(&[
        &[28, 0, 0, 0, 3, 0],
        &[0x02, 0x02], // NLM_F_MULTI | NLM_F_ACK_TLVS
        &[9, 0, 0, 0, 0, 0, 0, 0],
        &[0xf4, 0xff, 0xff, 0xff], // error: -12, ENOMEM
        &[8, 0, 1, 0],             // NLMSGERR_ATTR_MSG
        b"sad\0",
    ]);
    assert_eq!(answer(&bytes).content, refused(12, Some("sad")));
}

#[test]
fn parts_of_a_dump_during_which_something_changed() {
    let bytes = fields(&[
        &[28, 0, 0, 0, 0x1c, 0],
        &[0x12, 0], // NLM_F_MULTI | NLM_F_DUMP_INTR
        &[9, 0, 0, 0, 0, 0, 0, 0],
        &[1, 1, 0, 0],
        &[8, 0, 1, 0, 1, 2, 3, 4],
        &[20, 0, 0, 0, 3, 0, 0x12, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]);
    let part = |content| Answer {
        sequence: 9,
        is_inconsistent: true,
        content,
    };
    let expected = [
        part(Content::Attributes(&[8, 0, 1, 0, 1, 2, 3, 4])),
        part(Content::End(Ok(()))),
    ];
    let read: Vec<_> = answers(&bytes).into_iter().map(Result::unwrap).collect();
    assert_eq!(read, expected);
}

#[test]
fn nothing_and_an_overrun() {
    let bytes = fields(&[
        &[16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], // NLMSG_NOOP
        &[16, 0, 0, 0, 4, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0], // NLMSG_OVERRUN
    ]);
    assert_eq!(answer(&bytes).content, Content::Overrun);
}

#[test]
fn what_cannot_be_read_is_an_error_and_the_last() {
    for bytes in [
        // Shorter than a header.
        &[20, 0, 0, 0, 3, 0][..],
        // Longer than what came.
        &[21, 0, 0, 0, 3, 0, 2, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        // Shorter than its own header.
        &[0, 0, 0, 0, 3, 0, 2, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        // An error without a number.
        &[16, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
        // No header of the family.
        &[16, 0, 0, 0, 0x1c, 0, 2, 0, 9, 0, 0, 0, 0, 0, 0, 0],
        // Another family.
        &[20, 0, 0, 0, 0x1d, 0, 2, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0],
    ] {
        let [answer] = answers(bytes).try_into().unwrap();
        assert!(answer.is_err(), "{bytes:?}");
    }
}

#[test]
fn the_number_of_the_family() {
    let attributes = fields(&[
        b"\x09\0\x02\0IPVS\0\0\0\0",  // CTRL_ATTR_FAMILY_NAME
        &[6, 0, 1, 0, 0x1c, 0, 0, 0], // CTRL_ATTR_FAMILY_ID
        &[8, 0, 3, 0, 1, 0, 0, 0],    // CTRL_ATTR_VERSION
    ]);
    assert_eq!(wire::family_number(&attributes).unwrap(), FAMILY);
    assert!(wire::family_number(&attributes[..12]).is_err());
}
