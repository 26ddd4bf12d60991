//! What can be told of the BPF object without loading it.

use anyhow::{Context as _, Result, bail};

/// Section type of a symbol table.
const SYMTAB: u32 = 2;

/// Fails if the kernel would refuse the object for a reason that the verifier words badly.
pub fn check(object: &[u8]) -> Result<()> {
    let sections = sections(object).context("the BPF object is not a little-endian 64-bit ELF file")?;
    if !sections.iter().any(|section| section.name == ".BTF") {
        bail!("the BPF object has no BTF: was it compiled without debug information?");
    }
    let symbols = symbols(&sections).context("the symbol table of the BPF object is damaged")?;
    // Both ways of mangling write the path so. A call that never returns leaves a program without an exit.
    let panics: Vec<_> = symbols
        .iter()
        .filter(|name| name.contains("4core9panicking"))
        .map(String::as_str)
        .collect();
    if !panics.is_empty() {
        bail!(
            "the BPF object can panic, which the verifier refuses: {}. Look for indexing, unwrap, expect, \
             division and slices of a length known only at run time",
            panics.join(", ")
        );
    }
    Ok(())
}

struct Section<'a> {
    name: String,
    kind: u32,
    /// Index of the section with the strings that belong to this one.
    link: usize,
    data: &'a [u8],
}

fn sections(object: &[u8]) -> Option<Vec<Section<'_>>> {
    if object.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = usize::try_from(u64_at(object, 0x28)?).ok()?;
    let [size, count, names] = [0x3a, 0x3c, 0x3e].map(|offset| u16_at(object, offset).map(usize::from));
    let (size, count, names) = (size?, count?, names?);
    let header = |index: usize| object.get(table.checked_add(index.checked_mul(size)?)?..);
    let data = |header: &[u8]| -> Option<&[u8]> {
        let start = usize::try_from(u64_at(header, 0x18)?).ok()?;
        let length = usize::try_from(u64_at(header, 0x20)?).ok()?;
        object.get(start..start.checked_add(length)?)
    };
    let names = data(header(names)?)?;
    (0..count)
        .map(|index| {
            let header = header(index)?;
            Some(Section {
                name: string_at(names, u32_at(header, 0)?)?,
                kind: u32_at(header, 4)?,
                link: usize::try_from(u32_at(header, 0x28)?).ok()?,
                data: data(header)?,
            })
        })
        .collect()
}

fn symbols(sections: &[Section<'_>]) -> Option<Vec<String>> {
    const ENTRY: usize = 24;
    let mut names = Vec::new();
    for table in sections.iter().filter(|section| section.kind == SYMTAB) {
        let strings = sections.get(table.link)?.data;
        for entry in table.data.chunks_exact(ENTRY) {
            names.push(string_at(strings, u32_at(entry, 0)?)?);
        }
    }
    Some(names)
}

fn string_at(strings: &[u8], offset: u32) -> Option<String> {
    let text = strings.get(usize::try_from(offset).ok()?..)?;
    let end = text.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&text[..end]).into_owned())
}

fn bytes_at<const N: usize>(data: &[u8], offset: usize) -> Option<[u8; N]> {
    data.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

fn u16_at(data: &[u8], offset: usize) -> Option<u16> {
    bytes_at(data, offset).map(u16::from_le_bytes)
}

fn u32_at(data: &[u8], offset: usize) -> Option<u32> {
    bytes_at(data, offset).map(u32::from_le_bytes)
}

fn u64_at(data: &[u8], offset: usize) -> Option<u64> {
    bytes_at(data, offset).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object with one symbol, and with BTF if asked.
    fn object(symbol: &str, btf: bool) -> Vec<u8> {
        const HEADER: usize = 64;
        let strings = format!("\0.BTF\0.strtab\0.symtab\0{symbol}\0");
        let mut entry = [0; 24];
        entry[..4].copy_from_slice(&22_u32.to_le_bytes());
        // name, type, link, offset, size; the section with the strings is the first after the empty one.
        let strings_end = HEADER + strings.len();
        let sections = [
            (0, 0, 0, 0, 0),
            (6, 3, 0, HEADER, strings.len()),
            (14, SYMTAB, 1, strings_end, 24),
            (1, 1, 0, HEADER, 0),
        ];
        let sections = &sections[..if btf { 4 } else { 3 }];
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(HEADER, 0);
        file[0x28..0x30].copy_from_slice(&(strings_end as u64 + 24).to_le_bytes());
        file[0x3a] = 64;
        file[0x3c] = u8::try_from(sections.len()).unwrap();
        file[0x3e] = 1;
        file.extend(strings.as_bytes());
        file.extend(entry);
        for (name, kind, link, offset, size) in sections {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&u32::to_le_bytes(*name));
            header[4..8].copy_from_slice(&u32::to_le_bytes(*kind));
            header[0x28..0x2c].copy_from_slice(&u32::to_le_bytes(*link));
            header[0x18..0x20].copy_from_slice(&(*offset as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(*size as u64).to_le_bytes());
            file.extend(header);
        }
        file
    }

    #[test]
    fn accepts_a_good_object() {
        check(&object("tc_ingress", true)).unwrap();
    }

    #[test]
    fn refuses_an_object_without_btf() {
        assert!(
            check(&object("tc_ingress", false))
                .unwrap_err()
                .to_string()
                .contains("no BTF")
        );
    }

    #[test]
    fn names_what_panics() {
        for symbol in [
            "_ZN4core9panicking5panic17h0123456789abcdefE",
            "_RNvNtCs1234_4core9panicking18panic_bounds_check",
        ] {
            assert!(check(&object(symbol, true)).unwrap_err().to_string().contains(symbol));
        }
    }

    #[test]
    fn survives_what_is_no_object() {
        let good = object("tc_ingress", true);
        check(b"").unwrap_err();
        check(b"#!/bin/sh").unwrap_err();
        // The last section header may lack its end, which nobody reads.
        for length in 0..good.len() - 32 {
            check(&good[..length]).unwrap_err();
        }
    }
}
