//! Calls of attention for the test grid, and what they should give.

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::random::Generator;
use netcl_core::tensor::Tensor;
use netcl_ops::attention::{
    Attention, AttentionGradients, AttentionOptions, scaled_dot_product_attention as attend,
    scaled_dot_product_attention_backward as attend_backward,
};
use netcl_ops::dropout::MaskPlace;

use crate::support::{random, tensor};

/// One call, with everything in f64 on the host.
#[derive(Clone, Default)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Batch, heads, queries, keys, width, value width.
    pub(crate) sizes: [usize; 6],
    pub(crate) causal: bool,
    pub(crate) scale: Option<f64>,
    /// The shape of the mask; every seventh element is minus infinity, and so is the third row if it has rows.
    pub(crate) mask: Option<[usize; 4]>,
    pub(crate) dropout: f64,
    pub(crate) layout: Layout,
}

/// How q, k, v and the gradient lie in memory.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Layout {
    #[default]
    Dense,
    /// `[batch, length, heads, width]`, as projections make them.
    Heads,
    /// `[batch, heads, width, length]`: the last axis is not dense.
    Transposed,
}

pub(crate) fn cases() -> Vec<Case> {
    let case = Case::default();
    vec![
        Case { name: "one of each", sizes: [1, 1, 1, 1, 16, 16], ..case.clone() },
        Case { name: "plain", sizes: [2, 3, 37, 53, 16, 16], ..case.clone() },
        Case { name: "causal", sizes: [1, 2, 300, 300, 16, 16], causal: true, ..case.clone() },
        Case {
            name: "more keys, hidden ones",
            sizes: [2, 2, 40, 90, 16, 16],
            causal: true,
            mask: Some([1, 1, 40, 90]),
            layout: Layout::Heads,
            ..case.clone()
        },
        Case {
            name: "more queries",
            sizes: [1, 2, 150, 70, 16, 16],
            causal: true,
            scale: Some(-0.3),
            layout: Layout::Transposed,
            ..case.clone()
        },
        Case {
            name: "dropped",
            sizes: [2, 2, 33, 270, 16, 16],
            mask: Some([2, 1, 1, 270]),
            dropout: 0.2,
            ..case.clone()
        },
        Case { name: "odd widths", sizes: [1, 2, 66, 35, 5, 3], mask: Some([1, 2, 66, 1]), ..case.clone() },
        Case { name: "wide", sizes: [1, 1, 65, 130, 64, 64], causal: true, ..case },
    ]
}

pub(crate) struct Reference {
    pub(crate) out: Vec<f64>,
    pub(crate) gradients: [Vec<f64>; 3],
}

/// Plain loops over whole score matrices.
pub(crate) fn reference(case: &Case, q: &[f64], k: &[f64], v: &[f64], mask: Option<&[f64]>, grad: &[f64]) -> Reference {
    let [batch, heads, l, s, d, dv] = case.sizes;
    let scale = case.scale.unwrap_or(1.0 / (d as f64).sqrt());
    let mut result = Reference {
        out: vec![0.0; grad.len()],
        gradients: [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]],
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for matrix in 0..batch * heads {
        for i in 0..l {
            let row = matrix * l + i;
            let (query, grad) = (&q[row * d..][..d], &grad[row * dv..][..dv]);
            let (mut p, mut dropped) = (vec![0.0; s], vec![1.0; s]);
            for (j, p) in p.iter_mut().enumerate() {
                let key = &k[(matrix * s + j) * d..][..d];
                let seen = !case.causal || j <= i;
                let added = mask.map_or(0.0, |mask| {
                    let at = [matrix / heads, matrix % heads, i, j];
                    let shape = case.mask.unwrap();
                    let at = at.iter().zip(shape).fold(0, |flat, (&at, n)| flat * n + if n == 1 { 0 } else { at });
                    mask[at]
                });
                *p = if seen { dot(query, key) * scale + added } else { f64::NEG_INFINITY };
                if case.dropout > 0.0 {
                    let block = GENERATOR.offset + (row * s.div_ceil(4) + j / 4) as u64;
                    let word = GENERATOR.philox().block(block)[j % 4];
                    let kept = ((word >> 8) as f64) / f64::from(1 << 24) < f64::from((1.0 - case.dropout) as f32);
                    dropped[j] = if kept { 1.0 / (1.0 - case.dropout) } else { 0.0 };
                }
            }
            let top = p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if top == f64::NEG_INFINITY {
                continue;
            }
            p.iter_mut().for_each(|p| *p = (*p - top).exp());
            let total: f64 = p.iter().sum();
            p.iter_mut().for_each(|p| *p /= total);
            let value = |j: usize| &v[(matrix * s + j) * dv..][..dv];
            let dp: Vec<f64> = (0..s).map(|j| dot(grad, value(j)) * dropped[j]).collect();
            let delta = dot(&p, &dp);
            for j in 0..s {
                let ds = p[j] * (dp[j] - delta) * scale;
                for c in 0..d {
                    result.gradients[0][row * d + c] += ds * k[(matrix * s + j) * d + c];
                    result.gradients[1][(matrix * s + j) * d + c] += ds * query[c];
                }
                for (c, grad) in grad.iter().enumerate() {
                    result.out[row * dv + c] += p[j] * dropped[j] * value(j)[c];
                    result.gradients[2][(matrix * s + j) * dv + c] += p[j] * dropped[j] * grad;
                }
            }
        }
    }
    result
}

pub(crate) const GENERATOR: Generator = Generator { seed: 11, offset: 1000 };

/// A tensor of four axes in a layout, and its values in row-major order.
pub(crate) fn operand(queue: &Queue, shape: [usize; 4], seed: u64, dtype: DType, layout: Layout) -> (Tensor, Vec<f64>) {
    let values = random(shape.iter().product(), seed, (-1.0, 1.0));
    let [b, h, l, d] = shape;
    let t = match layout {
        Layout::Dense => tensor(queue, &values, shape, dtype).0,
        Layout::Heads => tensor(queue, &values, [b, l, h, d], dtype).0.permute(&[0, 2, 1, 3]).unwrap(),
        Layout::Transposed => tensor(queue, &values, [b, h, d, l], dtype).0.permute(&[0, 1, 3, 2]).unwrap(),
    };
    let values = t.to_f64_vec().unwrap();
    (t, values)
}

/// Tensors of a case on a device.
pub(crate) struct Inputs {
    pub(crate) tensors: [Tensor; 4],
    pub(crate) values: [Vec<f64>; 4],
    pub(crate) mask: Option<(Tensor, Vec<f64>)>,
}

impl Inputs {
    pub(crate) fn new(case: &Case, queue: &Queue, dtype: DType) -> Inputs {
        let [b, h, l, s, d, dv] = case.sizes;
        let shapes = [[b, h, l, d], [b, h, s, d], [b, h, s, dv], [b, h, l, dv]];
        let made: Vec<_> = (0..4).map(|i| operand(queue, shapes[i], 40 + i as u64, dtype, case.layout)).collect();
        let [q, k, v, grad]: [(Tensor, Vec<f64>); 4] = made.try_into().unwrap();
        let mask = case.mask.map(|shape| {
            let mut values = random(shape.iter().product(), 44, (-1.0, 1.0));
            for (i, v) in values.iter_mut().enumerate() {
                let row = i / shape[3] % shape[2];
                if i % 7 == 3 || (shape[2] > 1 && row == 2) {
                    *v = f64::NEG_INFINITY;
                }
            }
            tensor(queue, &values, shape, dtype)
        });
        Inputs { tensors: [q.0, k.0, v.0, grad.0], values: [q.1, k.1, v.1, grad.1], mask }
    }

    pub(crate) fn options(&self, case: &Case) -> AttentionOptions<'_> {
        AttentionOptions {
            causal: case.causal,
            mask: self.mask.as_ref().map(|(mask, _)| mask),
            dropout: (case.dropout > 0.0).then(|| (case.dropout, MaskPlace::from(GENERATOR))),
            scale: case.scale,
        }
    }

    pub(crate) fn run(&self, case: &Case) -> netcl_core::Result<(Attention, AttentionGradients)> {
        let [q, k, v, grad] = &self.tensors;
        let attention = attend(q, k, v, &self.options(case))?;
        let gradients = attend_backward(grad, q, k, v, &attention, &self.options(case))?;
        Ok((attention, gradients))
    }
}
