//! Declaring a region.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::plan::{Facts, Keep, Plan};
use super::spec::{Extent, Reduction, Spec};
use super::{Region, opencl};
use crate::kernels::described::Combine;
use crate::kernels::expr::{Expr, Graph, Id, Node, Val};

/// Where the results of reductions stand among the inputs of the graph while it is built.
const REDUCED: usize = 1 << 15;

/// A value of a [`RegionBuilder`]; it means nothing to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value(Id);

/// Declares a [`Region`], step by step: see the [module](super) for an example. Equal steps become one.
#[derive(Debug)]
pub struct RegionBuilder {
    label: String,
    graph: Graph,
    inputs: Vec<Extent>,
    reductions: Vec<(Reduction, Id)>,
    outputs: Vec<(Id, Option<Extent>)>,
}

impl RegionBuilder {
    /// A region under the name that launches and kernels will carry.
    pub fn new(label: impl Into<String>) -> Self {
        let graph = Graph::new();
        RegionBuilder { label: label.into(), graph, inputs: Vec::new(), reductions: Vec::new(), outputs: Vec::new() }
    }

    /// The next input, with one value for each element of a row.
    pub fn input(&mut self) -> Value {
        self.next_input(Extent::Full)
    }

    /// The next input, with one value for each row.
    pub fn row_input(&mut self) -> Value {
        self.next_input(Extent::Row)
    }

    fn next_input(&mut self, extent: Extent) -> Value {
        self.inputs.push(extent);
        Value(self.graph.input(self.inputs.len() - 1).id())
    }

    /// The outputs of an expression, element by element: full values if one of the inputs is, else row values. There is one
    /// value for each input of the expression, and for each of its scalars the number that scalar has in
    /// [`Region::run`]. [Names](Val::named) of the expression appear in the kernel's text.
    pub fn map(&mut self, expr: &Expr, inputs: &[Value], scalars: &[usize]) -> SmallVec<[Value; 2]> {
        let inputs: Vec<Val<'_>> = inputs.iter().map(|v| self.graph.val(v.0)).collect();
        let scalars: Vec<Val<'_>> = scalars.iter().map(|&s| self.graph.scalar(s)).collect();
        self.graph.inline(expr, &inputs, &scalars).into_iter().map(|v| Value(v.id())).collect()
    }

    /// The row value that the elements of a row combine to. (A row value counts once for every element.)
    pub fn reduce(&mut self, combine: Combine, value: Value) -> Value {
        let known = self.reductions.iter().position(|(r, id)| r.combine == combine && *id == value.0);
        let number = known.unwrap_or_else(|| {
            self.reductions.push((Reduction { combine, name: None }, value.0));
            self.reductions.len() - 1
        });
        Value(self.graph.input(REDUCED + number).id())
    }

    /// Names a value after the operation it is the result of, for readers of the kernel; the first name stays.
    pub fn name(&mut self, value: Value, name: impl Into<Arc<str>>) {
        match self.graph.node(value.0) {
            Node::Input(i) => {
                if let Some((reduction, _)) =
                    usize::from(i).checked_sub(REDUCED).and_then(|k| self.reductions.get_mut(k))
                {
                    reduction.name.get_or_insert_with(|| name.into());
                }
            }
            _ => {
                self.graph.val(value.0).named(name);
            }
        }
    }

    /// Makes a value the next output: one element for each of the row if it is full, else one per row.
    pub fn output(&mut self, value: Value) {
        self.outputs.push((value.0, None));
    }

    /// Makes a value the next output, one element for each of the row, whether it is full or the same for all of them.
    pub fn output_full(&mut self, value: Value) {
        self.outputs.push((value.0, Some(Extent::Full)));
    }

    /// The finished region. Reductions that no output needs are left out.
    pub fn finish(self) -> Arc<Region> {
        let RegionBuilder { label, graph, inputs, reductions, outputs } = self;
        // Backwards: a reduction only depends on earlier ones.
        let mut needed = vec![false; reductions.len()];
        let reductions_in = |expr: &Expr, needed: &mut [bool]| {
            for node in expr.nodes() {
                if let Node::Input(i) = *node
                    && let Some(known) = usize::from(i).checked_sub(REDUCED).and_then(|k| needed.get_mut(k))
                {
                    *known = true;
                }
            }
        };
        let results: Vec<Val<'_>> = outputs.iter().map(|(id, _)| graph.val(*id)).collect();
        reductions_in(&graph.finish(&results), &mut needed);
        for k in (0..reductions.len()).rev() {
            if needed[k] {
                reductions_in(&graph.finish(&[graph.val(reductions[k].1)]), &mut needed);
            }
        }
        let mut place = vec![0; reductions.len()];
        let mut kept = Vec::new();
        let mut roots: Vec<Val<'_>> = Vec::new();
        for (k, (reduction, operand)) in reductions.into_iter().enumerate() {
            if needed[k] {
                place[k] = inputs.len() + kept.len();
                kept.push(reduction);
                roots.push(graph.val(operand));
            }
        }
        roots.extend(&results);
        let mut expr = graph.finish(&roots);
        expr.renumber_inputs(inputs.len() + kept.len(), |i| match i.checked_sub(REDUCED) {
            Some(k) => place[k],
            None => i,
        });
        let facts = Facts::new(&expr, &inputs);
        let natural = |id: Id| if facts.full[id.index()] { Extent::Full } else { Extent::Row };
        let outputs: Vec<Extent> = expr.outputs()[kept.len()..]
            .iter()
            .zip(outputs)
            .map(|(&id, (_, asked))| asked.unwrap_or_else(|| natural(id)))
            .collect();
        let plans = [Keep::Nothing, Keep::Costly, Keep::Inputs].map(|keep| Plan::new(&expr, &facts, &outputs, keep));
        let key = key(&expr, &inputs, &kept, &outputs);
        let scalars = expr.scalars();
        let spec = Spec { label, expr, inputs, reductions: kept, outputs, scalars, key, facts, plans };
        Arc::new(Region { spec, native: [const { OnceLock::new() }; 4], sources: opencl::Sources::default() })
    }
}

fn key(expr: &Expr, inputs: &[Extent], reductions: &[Reduction], outputs: &[Extent]) -> u128 {
    let mut hash = blake3::Hasher::new();
    hash.update(&expr.key().to_le_bytes());
    for extents in [inputs, outputs] {
        hash.update(&extents.len().to_le_bytes());
        hash.update(&extents.iter().map(|e| u8::from(*e == Extent::Full)).collect::<Vec<u8>>());
    }
    for reduction in reductions {
        hash.update(reduction.combine.name().as_bytes());
        hash.update(b";");
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize().as_bytes()[..16]);
    u128::from_le_bytes(bytes)
}
