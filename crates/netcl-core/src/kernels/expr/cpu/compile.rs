//! From an expression to instructions and registers.

use super::Program;
use super::code::{Code, Instr, Slot};
use crate::backend::cpu::simd;
use crate::dtype::DType;
use crate::kernels::expr::{BinaryOp, Expr, Id, Node, TernaryOp};

/// Compiles; the caller has checked that slots fit their type.
pub(super) fn compile(expr: &Expr, compute: DType) -> Program {
    let plan = Plan::new(expr);
    let mut program = Program {
        prologue: Vec::new(),
        body: Vec::new(),
        constants: Vec::new(),
        parameters: Vec::new(),
        inputs: expr.inputs(),
        outputs: expr.outputs().len(),
        scalars: expr.scalars(),
        slots: 0,
        uniform: Vec::new(),
        spread: Vec::new(),
        last_read: vec![None; expr.inputs()],
        writer: Vec::new(),
        #[cfg(target_arch = "x86_64")]
        fused: None,
        compute,
        level: simd::level(),
    };
    let mut registers = Registers { first: (expr.inputs() + expr.outputs().len()) as Slot, used: 0, free: Vec::new() };
    let mut slot: Vec<Slot> = vec![0; expr.nodes().len()];

    // Uniform values first: their registers are never given back, since every chunk reads them.
    for (index, node) in expr.nodes().iter().enumerate() {
        if !plan.uniform[index] || plan.uses[index] == 0 {
            continue;
        }
        slot[index] = registers.take();
        match *node {
            Node::Const(c) => program.constants.push((slot[index], c)),
            Node::Scalar(i) => program.parameters.push((slot[index], usize::from(i))),
            _ => program.prologue.push(plan.instruction(expr, index, &slot, slot[index])),
        }
    }
    let mut left = plan.uses.clone();
    let mut written = vec![false; expr.outputs().len()];
    for (index, node) in expr.nodes().iter().enumerate() {
        if let Node::Input(i) = *node {
            slot[index] = i;
            continue;
        }
        if plan.uniform[index] || plan.uses[index] == 0 {
            continue;
        }
        // An output's value is made in its place, where later instructions can still read it.
        let output = expr.outputs().iter().position(|o| o.index() == index);
        slot[index] = match output {
            Some(o) => {
                written[o] = true;
                (expr.inputs() + o) as Slot
            }
            None => registers.take(),
        };
        program.body.push(plan.instruction(expr, index, &slot, slot[index]));
        for source in plan.sources(expr, index) {
            let source = source.index();
            left[source] -= 1;
            if left[source] == 0 && !plan.uniform[source] && slot[source] >= registers.first {
                registers.free.push(slot[source]);
            }
        }
    }
    // What is left: an output that is an input or a constant, or a value that is asked for twice.
    for (o, id) in expr.outputs().iter().enumerate() {
        if !written[o] {
            let from = slot[id.index()];
            let target = (expr.inputs() + o) as Slot;
            program.body.push(Instr { code: Code::Copy, sources: [from; 4], target });
        }
    }
    program.slots = usize::from(registers.first + registers.used);
    program.uniform = vec![false; program.slots];
    for (index, &slot) in slot.iter().enumerate() {
        if plan.uniform[index] && plan.uses[index] > 0 {
            program.uniform[usize::from(slot)] = true;
        }
    }
    for (at, instr) in program.body.iter().enumerate() {
        for source in instr.sources {
            if let Some(last) = program.last_read.get_mut(usize::from(source)) {
                *last = Some(at);
            }
        }
    }
    program.writer = (0..program.outputs)
        .map(|o| program.body.iter().position(|instr| usize::from(instr.target) == program.inputs + o).unwrap_or(0))
        .collect();
    program.prepare();
    program
}

struct Registers {
    first: Slot,
    used: Slot,
    free: Vec<Slot>,
}

impl Registers {
    fn take(&mut self) -> Slot {
        self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.first + self.used - 1
        })
    }
}

/// What each node is for.
struct Plan {
    /// Depends on scalars and constants only.
    uniform: Vec<bool>,
    /// How many instructions read it; an output counts as read once.
    uses: Vec<usize>,
}

impl Plan {
    fn new(expr: &Expr) -> Plan {
        let nodes = expr.nodes();
        let mut uniform = vec![false; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            uniform[index] = !matches!(node, Node::Input(_)) && node.operands().all(|o| uniform[o.index()]);
        }
        let mut plan = Plan { uniform, uses: vec![0; nodes.len()] };
        for id in expr.outputs() {
            plan.uses[id.index()] += 1;
        }
        // Backwards, so that a comparison that only ever steers choices is never materialised.
        for index in (0..nodes.len()).rev() {
            if plan.uses[index] > 0 {
                for source in plan.sources(expr, index) {
                    plan.uses[source.index()] += 1;
                }
            }
        }
        plan
    }

    /// The comparison a choice can make itself.
    fn chooses(&self, expr: &Expr, index: usize) -> Option<(BinaryOp, [Id; 4])> {
        let Node::Ternary(TernaryOp::Select, condition, a, b) = expr.nodes()[index] else { return None };
        match expr.nodes()[condition.index()] {
            Node::Binary(op, x, y) if op.comparison().is_some() => Some((op, [x, y, a, b])),
            _ => None,
        }
    }

    /// The values an instruction reads; one per read, so duplicates count.
    fn sources(&self, expr: &Expr, index: usize) -> Vec<Id> {
        match self.chooses(expr, index) {
            Some((_, sources)) => sources.to_vec(),
            None => expr.nodes()[index].operands().collect(),
        }
    }

    fn instruction(&self, expr: &Expr, index: usize, slot: &[Slot], target: Slot) -> Instr {
        let at = |id: Id| slot[id.index()];
        if let Some((op, sources)) = self.chooses(expr, index) {
            return Instr { code: Code::Choose(op), sources: sources.map(at), target };
        }
        match expr.nodes()[index] {
            Node::Unary(op, a) => Instr { code: Code::Unary(op), sources: [at(a); 4], target },
            Node::Binary(op, a, b) => Instr { code: Code::Binary(op), sources: [at(a), at(b), at(b), at(b)], target },
            Node::Ternary(op, a, b, c) => {
                let code = if op == TernaryOp::Fma { Code::Fma } else { Code::Select };
                Instr { code, sources: [at(a), at(b), at(c), at(c)], target }
            }
            // Leaves have no instruction; copying them onto themselves would be the nearest thing.
            Node::Input(_) | Node::Scalar(_) | Node::Const(_) => {
                Instr { code: Code::Copy, sources: [slot[index]; 4], target }
            }
        }
    }
}
