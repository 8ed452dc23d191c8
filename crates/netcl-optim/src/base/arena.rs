//! The parameters of one dtype on one device, and the flat tensor that holds what is kept for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netcl_autograd::Result;
use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::launch::{Slot, at_once, each_run};
use netcl_core::kernels::many::{CONTROLS, Many, Operands, Segment, Segments};
use netcl_core::shape::{Layout, Shape};
use netcl_core::tensor::Tensor as Raw;

use super::Pair;
use crate::group::ParamGroup;
use crate::optimizer::StepOptions;
use crate::rule::Rule;

/// Parts of rows start at multiples of this, which suits vectors and cache lines.
const ALIGN: usize = 16;

/// Where a parameter is at home.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) group: usize,
    /// Its place in the group.
    pub(super) at: usize,
    pub(super) arena: usize,
    /// Where its part of each row starts.
    pub(super) flat: usize,
    /// How many steps it has seen; shared with recorded steps, which count by themselves.
    steps: Arc<AtomicU64>,
}

impl Member {
    pub(super) fn new(group: usize, at: usize, arena: usize, flat: usize) -> Member {
        Member { group, at, arena, flat, steps: Arc::default() }
    }

    /// The same parameter at another place.
    pub(super) fn moved(&self, arena: usize, flat: usize) -> Member {
        Member { arena, flat, ..self.clone() }
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Acquire)
    }

    pub(super) fn set_steps(&self, steps: u64) {
        self.steps.store(steps, Ordering::Release);
    }
}

/// All parameters of a dtype and device.
#[derive(Debug)]
pub(super) struct Arena {
    queue: Queue,
    dtype: DType,
    rows: usize,
    stride: usize,
    /// The rows, then the controls; made by the first step.
    flat: Option<Raw>,
    plan: Option<Plan>,
}

/// How one step after the other is run, as long as the same parameters have gradients.
#[derive(Debug)]
struct Plan {
    members: Vec<usize>,
    segments: Segments,
    /// The group of each set of numbers.
    groups: Vec<usize>,
    tick: Arc<Tick>,
    /// Whether the device may have skipped steps.
    may_skip: bool,
}

/// What is counted at every step, also at those of a recorded program.
#[derive(Debug)]
struct Tick {
    counters: Vec<Arc<AtomicU64>>,
    /// For each set of numbers the slot that holds its step, and a member that counts for it.
    steps: Vec<(Arc<Slot>, Arc<AtomicU64>)>,
}

impl Tick {
    fn tick(&self) {
        for counter in &self.counters {
            counter.fetch_add(1, Ordering::AcqRel);
        }
        for (slot, counter) in &self.steps {
            slot.set_float(counter.load(Ordering::Acquire) as f64);
        }
    }
}

impl Arena {
    pub(super) fn new(parameter: &Raw, rows: usize) -> Arena {
        let (queue, dtype) = (parameter.queue().clone(), parameter.dtype());
        Arena { queue, dtype, rows, stride: 0, flat: None, plan: None }
    }

    pub(super) fn holds(&self, parameter: &Raw) -> bool {
        self.dtype == parameter.dtype() && self.queue.same_device(parameter.queue())
    }

    /// The type of what is kept: that of the computation.
    fn compute(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// A part of every row for a new parameter.
    pub(super) fn reserve(&mut self, elements: usize) -> usize {
        let flat = self.stride;
        self.stride += elements.next_multiple_of(ALIGN);
        flat
    }

    fn controls_at(&self) -> usize {
        self.rows * self.stride
    }

    /// The flat tensor, made or enlarged as needed.
    pub(super) fn flat(&mut self, initial: f64) -> Result<&Raw> {
        let size = self.controls_at() + CONTROLS;
        let made = match &self.flat {
            Some(flat) if flat.size() == size => flat.clone(),
            old => at_once(|| -> Result<Raw> {
                let made = Raw::from_shape(&self.queue, [size], self.compute())?;
                if initial != 0.0 {
                    part(&made, 0, [self.controls_at()])?.fill(initial)?;
                }
                if let Some(old) = old {
                    let stride = (old.size() - CONTROLS) / self.rows.max(1);
                    for row in 0..self.rows {
                        part(&made, row * self.stride, [stride])?.assign(&part(old, row * stride, [stride])?)?;
                    }
                }
                Ok(made)
            })?,
        };
        Ok(self.flat.insert(made))
    }

    /// Makes room for new parameters where there is a flat tensor.
    pub(super) fn grow(&mut self, initial: f64) -> Result<()> {
        if self.flat.is_some() {
            self.flat(initial)?;
        }
        Ok(())
    }

    /// What is kept for a parameter in a row.
    pub(super) fn kept(&self, row: usize, member: &Member, shape: &Shape) -> Result<Option<Raw>> {
        let Some(flat) = &self.flat else { return Ok(None) };
        Ok(Some(part(flat, row * self.stride + member.flat, shape.clone())?))
    }

    /// The segments of the parameters that have gradients.
    pub(super) fn segments(&self) -> Option<&Segments> {
        self.plan.as_ref().map(|plan| &plan.segments)
    }

    /// The tensor that holds the controls, and where.
    pub(super) fn controls(&mut self) -> Result<(&Raw, usize)> {
        let at = self.controls_at();
        Ok((self.flat(0.0)?, at))
    }

    /// The norm that the last decision was made by.
    pub(super) fn norm(&mut self) -> Result<Raw> {
        let at = self.controls_at() + CONTROLS - 1;
        Ok(part(self.flat(0.0)?, at, ())?)
    }

    /// Sees to it that the plan fits the parameters that have gradients now.
    pub(super) fn prepare(
        &mut self,
        pairs: &[Pair],
        members: &[Member],
        rule: &dyn Rule,
        options: &StepOptions,
    ) -> Result<()> {
        let fits = |plan: &Plan| {
            plan.may_skip == options.may_skip() && plan.members.iter().copied().eq(pairs.iter().map(|pair| pair.member))
        };
        if self.plan.as_ref().is_some_and(fits) {
            return Ok(());
        }
        self.settle(members)?;
        if pairs.is_empty() {
            return Ok(());
        }
        if self.rows > 0 || options.controls() {
            self.flat(rule.initial())?;
        }
        let (mut sets, mut steps): (Vec<(usize, u64)>, Vec<_>) = Default::default();
        let mut segments = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let member = &members[pair.member];
            // Without a count in the formula a group is one set, whatever its parameters have seen.
            let seen = if rule.counts() { member.steps() } else { 0 };
            let known = sets.iter().position(|set| *set == (member.group, seen));
            let set = known.unwrap_or_else(|| {
                sets.push((member.group, seen));
                steps.push((Slot::float(member.steps() as f64), member.steps.clone()));
                sets.len() - 1
            });
            segments.push(Segment { count: pair.parameter.size(), flat: member.flat, set });
        }
        let counters = pairs.iter().map(|pair| members[pair.member].steps.clone()).collect();
        self.plan = Some(Plan {
            members: pairs.iter().map(|pair| pair.member).collect(),
            segments: Segments::with_stride(segments, self.stride),
            groups: sets.into_iter().map(|(group, _)| group).collect(),
            tick: Arc::new(Tick { counters, steps }),
            may_skip: options.may_skip(),
        });
        Ok(())
    }

    /// Counts a step, also at every replay of one that is being recorded.
    pub(super) fn count(&self) -> Result<()> {
        let Some(plan) = &self.plan else { return Ok(()) };
        let tick = plan.tick.clone();
        Ok(each_run(move || {
            tick.tick();
            Ok(())
        })?)
    }

    /// Runs a kernel of a step.
    pub(super) fn run(&mut self, update: &Many, pairs: &[Pair], groups: &[ParamGroup], rule: &dyn Rule) -> Result<()> {
        self.grow(rule.initial())?;
        let Some(plan) = &self.plan else { return Ok(()) };
        let sets: Vec<Vec<Number>> = plan
            .groups
            .iter()
            .zip(&plan.tick.steps)
            .map(|(group, (step, _))| {
                let group = &groups[*group];
                let common = [group.learning_rate_number(), group.weight_decay_number(), Number::Slot(step.clone())];
                common.into_iter().chain(rule.settings(group)).collect()
            })
            .collect();
        let parameters: Vec<Raw> = pairs.iter().map(|pair| pair.parameter.clone()).collect();
        let gradients: Vec<Raw> = pairs.iter().map(|pair| pair.gradient.clone()).collect();
        let operands = Operands { lists: &[&parameters, &gradients], flat: self.flat.as_ref(), sets: &sets };
        Ok(update.run(&plan.segments, &operands)?)
    }

    /// Counts a step of the parameters that have gradients.
    pub(super) fn advance(&self) {
        if let Some(plan) = &self.plan {
            plan.tick.tick();
        }
    }

    /// The steps that the device has skipped under the current plan, for the parameters of that plan.
    pub(super) fn skipped(&self) -> Result<(&[usize], u64)> {
        match (&self.plan, &self.flat) {
            (Some(plan), Some(flat)) if plan.may_skip => {
                // The count as it stands: whoever records has not run anything since.
                let count = at_once(|| part(flat, self.controls_at() + 2, ())?.item())?;
                Ok((&plan.members, count as u64))
            }
            _ => Ok((&[], 0)),
        }
    }

    /// Ends the current plan: skipped steps are taken out of the counts.
    pub(super) fn settle(&mut self, members: &[Member]) -> Result<()> {
        let (skipping, skipped) = self.skipped()?;
        for &member in skipping {
            members[member].set_steps(members[member].steps().saturating_sub(skipped));
        }
        if skipped > 0
            && let Some(flat) = &self.flat
        {
            at_once(|| part(flat, self.controls_at(), [CONTROLS])?.fill(0.0))?;
        }
        self.plan = None;
        Ok(())
    }
}

/// A view of some elements of a flat tensor.
fn part(flat: &Raw, at: usize, shape: impl Into<Shape>) -> netcl_core::Result<Raw> {
    flat.with_layout(Layout::contiguous(shape.into()).shifted(flat.layout().offset() + at))
}
