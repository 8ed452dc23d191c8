//! Convolutions as plain f64 loops, to hold results against.

use netcl_core::backend::Queue;
use netcl_core::device::DeviceHandle;
use netcl_core::dtype::DType;
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_ops::conv::*;

use super::support::{epsilon, random, tensor};

/// How an input lies in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    Dense,
    ChannelsLast,
    /// Every second column, rows backwards.
    Strided,
}

/// A convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) x: [usize; 4],
    pub(crate) filters: usize,
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) padding: [usize; 4],
    pub(crate) dilation: [usize; 2],
    pub(crate) groups: usize,
    pub(crate) form: Form,
}

pub(crate) const fn case(x: [usize; 4], filters: usize, kernel: [usize; 2]) -> Case {
    let (stride, dilation) = ([1, 1], [1, 1]);
    Case { x, filters, kernel, stride, padding: [0; 4], dilation, groups: 1, form: Form::Dense }
}

impl Case {
    pub(crate) const fn stride(self, h: usize, w: usize) -> Case {
        Case { stride: [h, w], ..self }
    }
    pub(crate) const fn pad(self, padding: [usize; 4]) -> Case {
        Case { padding, ..self }
    }
    pub(crate) const fn dilate(self, h: usize, w: usize) -> Case {
        Case { dilation: [h, w], ..self }
    }
    pub(crate) const fn groups(self, groups: usize) -> Case {
        Case { groups, ..self }
    }
    pub(crate) const fn form(self, form: Form) -> Case {
        Case { form, ..self }
    }

    pub(crate) fn weight(&self) -> [usize; 4] {
        [self.filters, self.x[1] / self.groups, self.kernel[0], self.kernel[1]]
    }

    pub(crate) fn options(&self, variant: Option<Variant>) -> ConvOptions<'static> {
        let Case { stride, padding, dilation, groups, .. } = *self;
        ConvOptions { params: ConvParams { stride, padding, dilation, groups }, variant, ..Default::default() }
    }

    pub(crate) fn output(&self) -> [usize; 2] {
        let pad = [self.padding[0] + self.padding[1], self.padding[2] + self.padding[3]];
        [0, 1].map(|i| (self.x[2 + i] + pad[i] - self.dilation[i] * (self.kernel[i] - 1) - 1) / self.stride[i] + 1)
    }

    /// Calls back with the flat positions of output, input and weight of every product.
    pub(crate) fn products(&self, mut each: impl FnMut(usize, usize, usize)) {
        let ([n, c, h, w], [f, per_group, kh, kw], [oh, ow]) = (self.x, self.weight(), self.output());
        for (image, filter) in (0..n).flat_map(|i| (0..f).map(move |f| (i, f))) {
            let group = filter / (f / self.groups);
            for (oy, ox) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))) {
                for channel in 0..per_group {
                    for (ky, kx) in (0..kh).flat_map(|y| (0..kw).map(move |x| (y, x))) {
                        let y = (oy * self.stride[0] + ky * self.dilation[0]).wrapping_sub(self.padding[0]);
                        let x = (ox * self.stride[1] + kx * self.dilation[1]).wrapping_sub(self.padding[2]);
                        if y < h && x < w {
                            each(
                                ((image * f + filter) * oh + oy) * ow + ox,
                                ((image * c + group * per_group + channel) * h + y) * w + x,
                                ((filter * per_group + channel) * kh + ky) * kw + kx,
                            );
                        }
                    }
                }
            }
        }
    }
}

/// A tensor of a shape that lies in memory in some form, and its values in row-major order.
pub(crate) fn operand(queue: &Queue, shape: [usize; 4], form: Form, seed: u64, dtype: DType) -> (Tensor, Vec<f64>) {
    let [n, c, h, w] = shape;
    let values = |copies: usize| random(copies * n * c * h * w, seed, (-1.0, 1.0));
    let t = match form {
        Form::Dense => tensor(queue, &values(1), shape, dtype).0,
        Form::ChannelsLast => tensor(queue, &values(1), [n, h, w, c], dtype).0.permute(&[0, 3, 1, 2]).unwrap(),
        Form::Strided => {
            let (t, _) = tensor(queue, &values(2), [n, c, h, 2 * w], dtype);
            t.slice(3, Slice::new(Some(1), None, 2)).unwrap().slice(2, Slice::new(None, None, -1)).unwrap()
        }
    };
    let values = t.to_f64_vec().unwrap();
    (t, values)
}

/// Sums of products, the sums of their magnitudes, and the largest number of terms.
pub(crate) struct Reference {
    sums: Vec<f64>,
    sizes: Vec<f64>,
    terms: Vec<usize>,
}

impl Reference {
    pub(crate) fn new(n: usize) -> Reference {
        Reference { sums: vec![0.0; n], sizes: vec![0.0; n], terms: vec![0; n] }
    }

    pub(crate) fn add(&mut self, at: usize, term: f64) {
        self.sums[at] += term;
        self.sizes[at] += term.abs();
        self.terms[at] += 1;
    }

    /// Every element within the rounding errors of a sum of its terms and of the result's own type. Winograd's transforms mix
    /// neighbours: `spread` is how many times the largest magnitude of the result they may add to the error of each.
    pub(crate) fn check(&self, got: &Tensor, dtype: DType, spread: f64) -> Result<(), String> {
        let values = got.to_f64_vec().map_err(|e| e.to_string())?;
        if values.len() != self.sums.len() {
            return Err(format!("shape {} instead of {} elements", got.shape(), self.sums.len()));
        }
        let (sum_eps, out_eps) = (epsilon(dtype.accumulator()), epsilon(got.dtype()));
        let largest = self.sizes.iter().copied().fold(0.0, f64::max);
        for (i, (&g, &e)) in values.iter().zip(&self.sums).enumerate() {
            let bound = (self.terms[i] + 4) as f64 * sum_eps * self.sizes[i]
                + spread * sum_eps * largest
                + out_eps * e.abs()
                + 1e-7 * f64::from(u8::from(out_eps > 1e-4));
            if g.is_nan() || (g - e).abs() > bound {
                return Err(format!("element {i} is {g:e}, expected {e:e} within {bound:e}"));
            }
        }
        Ok(())
    }
}

/// tf32 keeps 11 bits of each operand: errors of up to 2^-10 of the sum of magnitudes, in units of float32's.
const TF32: f64 = 16384.0;
/// What Winograd's F(2x2, 3x3) may add. One element of the whole grid needs any of it, and that one less than a tenth.
pub(crate) const WINOGRAD: f64 = 1.0;

/// Forward and both gradients of a case.
pub(crate) fn run(device: &DeviceHandle, dtype: DType, case: &Case, variant: Option<Variant>) -> Result<(), String> {
    let (q, [oh, ow]) = (&device.queue, case.output());
    let (x, vx) = operand(q, case.x, case.form, 1, dtype);
    let (weight, vw) = operand(q, case.weight(), case.form, 2, dtype);
    let (grad, vg) = operand(q, [case.x[0], case.filters, oh, ow], case.form, 3, dtype);
    let mut out = Reference::new(vg.len());
    let (mut dx, mut dw) = (Reference::new(vx.len()), Reference::new(vw.len()));
    case.products(|o, i, w| {
        out.add(o, vx[i] * vw[w]);
        dx.add(i, vg[o] * vw[w]);
        dw.add(w, vg[o] * vx[i]);
    });
    // By default Winograd may be what a device's selector chooses, also for a gradient that a variant does not have.
    let own = matches!(variant, Some(Variant::Naive | Variant::Im2col));
    let spread = match variant {
        Some(Variant::Units) if dtype == DType::F32 => TF32,
        _ if !own && dtype == DType::F32 => WINOGRAD,
        _ => 0.0,
    };
    let options = case.options(variant);
    let named = |what: &'static str| move |why: String| format!("{what}: {why}");
    let text = |e: netcl_core::Error| e.to_string();
    let got = conv2d(&x, &weight, None, &options).map_err(text)?;
    if got.shape() != grad.shape() || got.dtype() != dtype {
        return Err(format!("{} of {}", got.shape(), got.dtype()));
    }
    out.check(&got, dtype, spread).map_err(named("out"))?;
    let got = conv2d_backward_data(&grad, &weight, x.shape(), &options).map_err(text)?;
    dx.check(&got, dtype, spread).map_err(named("data gradient"))?;
    let got = conv2d_backward_weight(&grad, &x, weight.shape(), &options).map_err(text)?;
    dw.check(&got, dtype, if variant == Some(Variant::Units) { spread } else { 0.0 }).map_err(named("weight gradient"))
}
