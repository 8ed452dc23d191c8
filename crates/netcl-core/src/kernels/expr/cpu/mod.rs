//! Native evaluation: an expression becomes a short program of whole-chunk instructions.
//!
//! A chunk is as many elements as keep every temporary in the first-level cache; each instruction is one vectorised loop
//! over it, so that the cost of interpreting is spread over hundreds of elements. Inputs that lie densely in memory in
//! the type of the computation are read where they are, and the last instruction writes the result where it belongs. Where
//! registers are large enough, short instructions leave their results there for the next one (`fused.rs`).

#[cfg(target_arch = "x86_64")]
mod avx512;
mod code;
mod compile;
mod exec;
#[cfg(target_arch = "x86_64")]
mod fused;
mod operand;
mod run;
mod walk;

use crate::backend::cpu::simd::{self, Level};
use crate::dtype::DType;
use crate::error::{Error, Result};

use super::{Expr, Literal};
use code::{Code, Instr, Slot};
pub use run::{Nest, Registers, Source, Target};

/// A compiled expression. Immutable and shareable; every run has its own registers.
///
/// Results do not depend on how a range is split among calls, and are the same bits on every run on one machine.
#[derive(Clone, Debug)]
pub struct Program {
    /// Instructions whose operands are only scalars and constants: run once, not once per chunk.
    prologue: Vec<Instr>,
    body: Vec<Instr>,
    constants: Vec<(Slot, Literal)>,
    parameters: Vec<(Slot, usize)>,
    inputs: usize,
    outputs: usize,
    scalars: usize,
    slots: usize,
    /// Slots that hold one number throughout: constants, scalars and what is computed from them.
    uniform: Vec<bool>,
    /// Slots of which some instruction needs a whole chunk, even where they hold one number.
    spread: Vec<bool>,
    /// For each input the last instruction of the body that reads it.
    last_read: Vec<Option<usize>>,
    /// For each output the instruction of the body that writes it.
    writer: Vec<usize>,
    /// The body for registers that hold a value from one instruction to the next, where the processor has those.
    #[cfg(target_arch = "x86_64")]
    fused: Option<Vec<fused::Step>>,
    compute: DType,
    level: Level,
}

impl Program {
    /// Compiles an expression to be computed in f32 or f64.
    pub fn compile(expr: &Expr, compute: DType) -> Result<Program> {
        if !matches!(compute, DType::F32 | DType::F64) {
            let expected = "float32 or float64 to compute in (16-bit types compute in float32)".to_owned();
            return Err(Error::Dtype { op: "expression", expected, got: compute });
        }
        let slots = expr.nodes().len() + expr.inputs() + 2 * expr.outputs().len();
        if slots > usize::from(u16::MAX) {
            let what = format!("{} nodes are too many for one program; split the expression", expr.nodes().len());
            return Err(Error::argument("expression", what));
        }
        Ok(compile::compile(expr, compute))
    }

    /// The type to compute in for operands of some types: f64 if one of them is, else f32.
    pub fn compute_type(dtypes: impl IntoIterator<Item = DType>) -> DType {
        if dtypes.into_iter().any(|d| d == DType::F64) { DType::F64 } else { DType::F32 }
    }

    /// The same program on another instruction set, to test and compare; one the processor lacks is ignored.
    pub fn with_level(mut self, level: Level) -> Program {
        self.level = level.min(simd::level());
        self.prepare();
        self
    }

    /// Decides what depends on the level.
    fn prepare(&mut self) {
        self.spread = self.spread_slots();
        #[cfg(target_arch = "x86_64")]
        {
            let wide = self.compute == DType::F32 && self.is_wide(Code::Copy);
            self.fused = wide.then(|| fused::steps(&self.body, self.inputs + self.outputs)).flatten();
        }
    }

    /// From how many elements on runs of any length need no more memory than those of a chunk: no value waits in memory for the
    /// whole of a run.
    fn takes_any_length_from(&self) -> Option<usize> {
        #[cfg(target_arch = "x86_64")]
        if self.fused.is_some() {
            return Some(fused::WORTHWHILE);
        }
        (self.body.len() == 1 && !self.spread.contains(&true)).then_some(0)
    }

    /// Whether an instruction may write where it reads, and takes numbers in the place of chunks.
    fn is_wide(&self, code: Code) -> bool {
        match self.compute {
            DType::F64 => exec::is_wide::<f64>(self.level, code),
            _ => exec::is_wide::<f32>(self.level, code),
        }
    }

    /// What [`Program::spread`](Self) is at this level.
    fn spread_slots(&self) -> Vec<bool> {
        let mut spread = vec![false; self.slots];
        for instr in self.body.iter().filter(|instr| !instr.code.takes_numbers() && !self.is_wide(instr.code)) {
            for source in instr.sources {
                spread[usize::from(source)] = true;
            }
        }
        spread
    }

    /// Whether an output may be written to the memory of an input at once: nothing reads the input after that.
    fn may_overwrite(&self, output: usize, input: usize) -> bool {
        let writer = self.writer[output];
        self.last_read[input].is_none_or(|last| last < writer || last == writer && self.is_wide(self.body[writer].code))
    }

    /// The number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The number of outputs.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The number of run-time scalars.
    pub fn scalars(&self) -> usize {
        self.scalars
    }

    /// The type it computes in.
    pub fn compute(&self) -> DType {
        self.compute
    }

    /// The number of loops per chunk and of registers: what fusion heuristics may want to know.
    pub fn cost(&self) -> (usize, usize) {
        (self.body.len(), self.slots - self.inputs - self.outputs)
    }
}
