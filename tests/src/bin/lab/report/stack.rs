//! How much stack a program uses, from its instructions: the kernel only tells whether it is too much.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use anyhow::{Context as _, Result};
use aya_obj::Object;
use aya_obj::generated::{
    BPF_ADD, BPF_ALU64, BPF_CALL, BPF_JMP, BPF_K, BPF_LDX, BPF_MOV, BPF_PSEUDO_CALL, BPF_ST, BPF_STX, BPF_X, bpf_insn,
};

/// The register that points to the end of the stack frame.
const FRAME: u8 = 10;

/// The depth of each program in bytes, with the functions that it calls.
pub(super) fn depths(object: &mut Object) -> Result<BTreeMap<String, usize>> {
    // Puts the functions behind the programs that call them, with calls relative to themselves.
    let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    object
        .relocate_calls(&text)
        .context("resolving calls between functions")?;
    let programs = object.programs.iter();
    let depths = programs.map(|(name, program)| {
        let function = object.functions.get(&program.function_key());
        let function = function.with_context(|| format!("the program {name} has no instructions"))?;
        Ok((
            name.clone(),
            Code::new(&function.instructions).depth(0, &mut Vec::new()),
        ))
    });
    depths.collect()
}

/// The instructions of a program and of the functions behind it.
struct Code<'a> {
    instructions: &'a [bpf_insn],
    /// Where a function begins, and where the last one ends.
    borders: BTreeSet<usize>,
}

impl<'a> Code<'a> {
    fn new(instructions: &'a [bpf_insn]) -> Self {
        let calls = instructions
            .iter()
            .enumerate()
            .filter_map(|(at, instruction)| callee(at, instruction));
        let borders = calls.chain([0, instructions.len()]).collect();
        Self { instructions, borders }
    }

    /// The depth of the function that begins there, with the deepest that it calls.
    fn depth(&self, begin: usize, callers: &mut Vec<usize>) -> usize {
        // The verifier refuses recursion, and a call to nowhere; neither shall make us hang.
        if callers.contains(&begin) {
            return 0;
        }
        let end = self
            .borders
            .range(begin + 1..)
            .next()
            .copied()
            .unwrap_or(self.instructions.len());
        let Some(body) = self.instructions.get(begin..end) else {
            return 0;
        };
        callers.push(begin);
        let calls = body
            .iter()
            .enumerate()
            .filter_map(|(at, instruction)| callee(begin + at, instruction));
        let deepest = calls.map(|callee| self.depth(callee, callers)).max().unwrap_or(0);
        callers.pop();
        own_depth(body) + deepest
    }
}

/// The function that an instruction calls.
fn callee(at: usize, instruction: &bpf_insn) -> Option<usize> {
    let is_call = u32::from(instruction.code) == BPF_JMP | BPF_CALL;
    if !is_call || u32::from(instruction.src_reg()) != BPF_PSEUDO_CALL {
        return None;
    }
    usize::try_from(i64::try_from(at).ok()? + 1 + i64::from(instruction.imm)).ok()
}

/// The furthest that a function reaches below its frame, in bytes, as the verifier rounds it.
fn own_depth(body: &[bpf_insn]) -> usize {
    let direct = body.iter().filter_map(|instruction| {
        let base = match u32::from(instruction.code) & 7 {
            BPF_LDX => instruction.src_reg(),
            BPF_ST | BPF_STX => instruction.dst_reg(),
            _ => return None,
        };
        (base == FRAME).then_some(i64::from(instruction.off))
    });
    // An address on the stack is made by two instructions: a copy of the frame's, and an addition.
    let taken = body.windows(2).filter_map(|pair| {
        let [copy, add] = pair else { return None };
        let is_copy = u32::from(copy.code) == BPF_ALU64 | BPF_MOV | BPF_X && copy.src_reg() == FRAME;
        let is_add = u32::from(add.code) == BPF_ALU64 | BPF_ADD | BPF_K && add.dst_reg() == copy.dst_reg();
        (is_copy && is_add).then_some(i64::from(add.imm))
    });
    let lowest = direct.chain(taken).min().unwrap_or(0).min(0);
    usize::try_from(-lowest).unwrap_or(0).next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u32, dst: u8, src: u8, off: i16, imm: i32) -> bpf_insn {
        let mut instruction = aya_obj::copy_instructions(&[0; 8]).unwrap()[0];
        instruction.code = u8::try_from(code).unwrap();
        instruction.set_dst_reg(dst);
        instruction.set_src_reg(src);
        (instruction.off, instruction.imm) = (off, imm);
        instruction
    }

    #[test]
    fn a_store_and_an_address_count_and_a_callee_comes_on_top() {
        let exit = || instruction(BPF_JMP | 0x90, 0, 0, 0, 0);
        let program = [
            // *(u64 *)(r10 - 20) = r1
            instruction(BPF_STX | 0x78, FRAME, 1, -20, 0),
            instruction(BPF_JMP | BPF_CALL, 0, 1, 0, 1),
            exit(),
            // r2 = r10; r2 += -64
            instruction(BPF_ALU64 | BPF_MOV | BPF_X, 2, FRAME, 0, 0),
            instruction(BPF_ALU64 | BPF_ADD | BPF_K, 2, 0, 0, -64),
            exit(),
        ];
        assert_eq!(own_depth(&program[..3]), 24);
        assert_eq!(Code::new(&program).depth(0, &mut Vec::new()), 24 + 64);
    }
}
