//! Random programs: up to thirty ops with shared subexpressions, broadcasting and leaves without gradients. Their gradients are
//! held against finite differences in f64.

use netcl_autograd::gradcheck::{Tolerance, gradcheck};
use netcl_autograd::ops::layout;
use netcl_autograd::{Result, Tensor, checkpoint};
use netcl_core::dtype::DType;
use proptest::prelude::*;

use crate::support::{cpu, leaf};

/// One step: which op, and which earlier values it takes.
#[derive(Clone, Debug)]
struct Step {
    op: u8,
    first: usize,
    second: usize,
}

/// A program over a few leaves.
#[derive(Clone, Debug)]
struct Program {
    /// The shape of each leaf (an index into [`SHAPES`]) and whether it wants a gradient.
    leaves: Vec<(usize, bool)>,
    steps: Vec<Step>,
    seed: u64,
}

/// Shapes that broadcast together.
const SHAPES: [&[usize]; 6] = [&[2, 3], &[3], &[2, 1], &[], &[1, 3], &[1]];

fn programs() -> impl Strategy<Value = Program> {
    let step = (any::<u8>(), any::<usize>(), any::<usize>()).prop_map(|(op, first, second)| Step { op, first, second });
    let leaves = prop::collection::vec((0..SHAPES.len(), prop::bool::weighted(0.75)), 2..5);
    (leaves, prop::collection::vec(step, 1..=30), any::<u64>()).prop_map(|(leaves, steps, seed)| Program {
        leaves,
        steps,
        seed,
    })
}

/// Keeps values near one, so that thirty steps neither overflow nor die out. All ops are smooth there.
fn tame(x: &Tensor) -> Result<Tensor> {
    &x.tanh()? + 0.1
}

impl Program {
    fn run(&self, leaves: &[&Tensor]) -> Result<Tensor> {
        let mut values: Vec<Tensor> = leaves.iter().map(|t| (*t).clone()).collect();
        for step in &self.steps {
            let (a, b) = (&values[step.first % values.len()], &values[step.second % values.len()]);
            let matrix = |t: &Tensor| t.expand([2, 3]);
            let result = match step.op % 18 {
                0 => (a + b)?,
                1 => (a - b)?,
                2 => (a * b)?,
                3 => (a / &(&b.square()? + 1.0)?)?,
                4 => a.exp()?,
                5 => a.sin()?,
                6 => a.sigmoid()?,
                7 => a.softplus(1.0, 20.0)?,
                8 => a.sum((), false)?,
                9 => matrix(a)?.mean(1, true)?,
                10 => matrix(a)?.softmax(-1)?,
                11 => matrix(a)?.transpose(0, 1)?.matmul(&matrix(b)?)?.mean(0, false)?,
                12 => matrix(a)?.logsumexp(0, false)?,
                13 => layout::cat(&[&matrix(a)?, &matrix(b)?], 0)?.sum(0, true)?,
                14 => matrix(a)?.flip(&[1])?.cumsum(1)?,
                15 => layout::stack(&[&matrix(a)?, &matrix(b)?], 0)?.select(0, 1)?,
                16 => checkpoint(|t| (t[0] * t[1])?.tanh(), &[a, b])?,
                _ => (&matrix(a)?.var(0, 1.0, false)? * 0.5)?,
            };
            values.push(tame(&result)?);
        }
        // Every value counts, so that every step has a gradient.
        let mut total = Tensor::from_shape(values[0].queue(), (), DType::F64)?;
        for (i, value) in values.iter().enumerate() {
            total = (&total + &(&value.sum((), false)? * (0.3 + i as f64 * 0.1))?)?;
        }
        Ok(total)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gradients_of_random_programs_agree_with_differences(program in programs()) {
        let leaves: Vec<Tensor> = program
            .leaves
            .iter()
            .enumerate()
            .map(|(i, &(shape, wanted))| {
                let leaf = leaf(&cpu(), DType::F64, SHAPES[shape], program.seed.wrapping_add(i as u64), (-1.0, 1.0));
                if wanted { leaf } else { leaf.detach() }
            })
            .collect();
        let refs: Vec<&Tensor> = leaves.iter().collect();
        gradcheck(|t| program.run(t), &refs, Tolerance::default()).map_err(|error| TestCaseError::fail(error.to_string()))?;
        // Leaves that asked for nothing have got nothing, and a walk over the whole graph gives what the pruned one gave.
        let loss = program.run(&refs).unwrap();
        if loss.requires_grad() {
            loss.backward().unwrap();
        }
        for (leaf, (_, wanted)) in leaves.iter().zip(&program.leaves) {
            prop_assert_eq!(leaf.grad().is_some(), *wanted);
        }
    }
}
