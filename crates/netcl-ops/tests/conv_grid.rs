//! Convolutions and their gradients: devices x dtypes x geometries x variants, held against plain f64 loops with a bound that grows
//! with the number of terms; and PyTorch's own numbers, exactly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

mod support;

use std::process::Command;

use netcl_core::backend::Queue;
use netcl_core::backend::cpu::threads::set_num_threads;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Graph;
use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::Tensor;
use netcl_ops::conv::*;
use netcl_ops::matmul::Epilogue;
use support::{Grid, devices, epsilon, random, supports, tensor};

/// How an input lies in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Dense,
    ChannelsLast,
    /// Every second column, rows backwards.
    Strided,
}

/// A convolution.
#[derive(Clone, Copy, Debug)]
struct Case {
    x: [usize; 4],
    filters: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 4],
    dilation: [usize; 2],
    groups: usize,
    form: Form,
}

const fn case(x: [usize; 4], filters: usize, kernel: [usize; 2]) -> Case {
    let (stride, dilation) = ([1, 1], [1, 1]);
    Case { x, filters, kernel, stride, padding: [0; 4], dilation, groups: 1, form: Form::Dense }
}

impl Case {
    const fn stride(self, h: usize, w: usize) -> Case {
        Case { stride: [h, w], ..self }
    }
    const fn pad(self, padding: [usize; 4]) -> Case {
        Case { padding, ..self }
    }
    const fn dilate(self, h: usize, w: usize) -> Case {
        Case { dilation: [h, w], ..self }
    }
    const fn groups(self, groups: usize) -> Case {
        Case { groups, ..self }
    }
    const fn form(self, form: Form) -> Case {
        Case { form, ..self }
    }

    fn weight(&self) -> [usize; 4] {
        [self.filters, self.x[1] / self.groups, self.kernel[0], self.kernel[1]]
    }

    fn options(&self, variant: Option<Variant>) -> ConvOptions<'static> {
        let Case { stride, padding, dilation, groups, .. } = *self;
        ConvOptions { stride, padding, dilation, groups, epilogue: None, variant }
    }

    fn output(&self) -> [usize; 2] {
        let pad = [self.padding[0] + self.padding[1], self.padding[2] + self.padding[3]];
        [0, 1].map(|i| (self.x[2 + i] + pad[i] - self.dilation[i] * (self.kernel[i] - 1) - 1) / self.stride[i] + 1)
    }

    /// Calls back with the flat positions of output, input and weight of every product.
    fn products(&self, mut each: impl FnMut(usize, usize, usize)) {
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

const CASES: [Case; 27] = [
    case([2, 3, 7, 9], 5, [3, 3]).pad([1, 1, 1, 1]),
    case([1, 1, 1, 1], 1, [1, 1]),
    case([2, 9, 8, 8], 17, [3, 3]).pad([1, 1, 1, 1]),
    case([2, 4, 11, 13], 3, [3, 3]).stride(2, 2).pad([1, 1, 1, 1]),
    case([1, 3, 15, 15], 8, [7, 7]).stride(2, 2).pad([3, 3, 3, 3]),
    case([2, 6, 7, 5], 4, [1, 1]),
    case([2, 6, 7, 5], 4, [1, 1]).stride(2, 3),
    case([2, 6, 7, 5], 4, [1, 1]).pad([1, 0, 2, 1]),
    case([1, 4, 9, 10], 6, [3, 3]).pad([0, 2, 1, 3]),
    case([2, 3, 8, 9], 4, [2, 5]).pad([1, 0, 2, 2]),
    case([1, 2, 12, 6], 3, [5, 1]).stride(3, 1),
    case([1, 2, 4, 14], 3, [1, 4]).stride(1, 3).pad([0, 0, 2, 0]),
    case([2, 3, 11, 12], 4, [3, 3]).dilate(2, 3).pad([2, 2, 3, 3]),
    case([1, 3, 13, 13], 4, [3, 3]).dilate(3, 2).stride(2, 3).pad([1, 2, 0, 3]),
    case([2, 6, 6, 7], 9, [3, 3]).groups(3).pad([1, 1, 1, 1]),
    case([2, 5, 9, 8], 5, [3, 3]).groups(5).pad([1, 1, 1, 1]),
    case([1, 4, 9, 8], 12, [3, 3]).groups(4).stride(2, 2).pad([1, 1, 1, 1]),
    case([2, 8, 5, 5], 6, [1, 1]).groups(2),
    case([0, 3, 5, 5], 4, [3, 3]),
    case([3, 2, 3, 3], 2, [3, 3]),
    case([2, 3, 6, 7], 4, [3, 3]).pad([1, 1, 1, 1]).form(Form::ChannelsLast),
    case([2, 4, 6, 7], 3, [3, 2]).stride(2, 1).form(Form::Strided),
    case([2, 4, 6, 7], 3, [1, 1]).form(Form::ChannelsLast),
    // The filter is taller than the image, which the padding makes up for; a stride longer than the filter.
    case([1, 2, 2, 9], 3, [4, 3]).pad([2, 2, 0, 0]).stride(1, 5),
    // More padding than the filter reaches.
    case([1, 2, 4, 3], 2, [2, 2]).pad([3, 2, 2, 4]).stride(2, 2),
    case([5, 3, 17, 19], 10, [3, 3]).pad([1, 1, 1, 1]),
    case([1, 20, 10, 33], 19, [3, 3]).pad([1, 1, 1, 1]),
];

fn positions(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// A tensor of a shape that lies in memory in some form, and its values in row-major order.
fn operand(queue: &Queue, shape: [usize; 4], form: Form, seed: u64, dtype: DType) -> (Tensor, Vec<f64>) {
    let [n, c, h, w] = shape;
    let t = match form {
        Form::Dense => tensor(queue, &random(positions(&shape), seed, (-1.0, 1.0)), shape, dtype).0,
        Form::ChannelsLast => {
            let (t, _) = tensor(queue, &random(positions(&shape), seed, (-1.0, 1.0)), [n, h, w, c], dtype);
            t.permute(&[0, 3, 1, 2]).unwrap()
        }
        Form::Strided => {
            let (t, _) = tensor(queue, &random(2 * positions(&shape), seed, (-1.0, 1.0)), [n, c, h, 2 * w], dtype);
            t.slice(3, Slice::new(Some(1), None, 2)).unwrap().slice(2, Slice::new(None, None, -1)).unwrap()
        }
    };
    let values = t.to_f64_vec().unwrap();
    (t, values)
}

/// Sums of products, the sums of their magnitudes, and the largest number of terms.
struct Reference {
    sums: Vec<f64>,
    sizes: Vec<f64>,
    terms: Vec<usize>,
}

impl Reference {
    fn new(n: usize) -> Reference {
        Reference { sums: vec![0.0; n], sizes: vec![0.0; n], terms: vec![0; n] }
    }

    fn add(&mut self, at: usize, term: f64) {
        self.sums[at] += term;
        self.sizes[at] += term.abs();
        self.terms[at] += 1;
    }

    /// Every element within the rounding errors of a sum of its terms and of the result's own type. Winograd's transforms mix
    /// neighbours: `spread` is how many times the largest magnitude of the result they may add to the error of each.
    fn check(&self, got: &Tensor, dtype: DType, spread: f64) -> Result<(), String> {
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

/// What Winograd's F(2x2, 3x3) may add: measured below 1, stated with room.
const WINOGRAD: f64 = 8.0;

/// Forward and both gradients of a case.
fn run(device: &DeviceHandle, dtype: DType, case: &Case, variant: Option<Variant>) -> Result<(), String> {
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
    // By default Winograd may be what a device's selector chooses.
    let spread = if variant.is_none_or(|v| v == Variant::Winograd) && dtype == DType::F32 { WINOGRAD } else { 0.0 };
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
    dw.check(&got, dtype, 0.0).map_err(named("weight gradient"))
}

fn is_pocl(device: &DeviceHandle) -> bool {
    device.platform_name.contains("Portable")
}

#[test]
fn every_geometry_dtype_and_device() {
    let mut grid = Grid::new("conv2d");
    for device in devices() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            // A PoCL kernel takes a fifth of a second to build: types other than f32 are sampled there.
            let step = if is_pocl(&device) && dtype != DType::F32 { 6 } else { 1 };
            for case in CASES.iter().step_by(step) {
                grid.cell(&device, format!("{dtype} {case:?}"), || run(&device, dtype, case, None));
            }
        }
    }
    grid.finish(4 * CASES.len());
}

fn opencl_devices() -> Vec<DeviceHandle> {
    devices().into_iter().filter(|d| d.backend.name() == "cl").collect()
}

fn winograd_fits(case: &Case, dtype: DType) -> bool {
    let plain = case.stride == [1, 1] && case.dilation == [1, 1] && case.groups == 1;
    plain && case.kernel == [3, 3] && dtype == DType::F32
}

#[test]
fn every_variant() {
    let mut grid = Grid::new("conv2d variants");
    for device in opencl_devices() {
        for variant in Variant::ALL {
            for dtype in DType::FLOATS {
                if !supports(&device, dtype) {
                    grid.skip("the device has no float64");
                    continue;
                }
                let sampled = dtype != DType::F32;
                for case in CASES.iter().step_by(if sampled { 7 } else { 1 }).take(if sampled && is_pocl(&device) { 1 } else { 99 }) {
                    if variant == Variant::Winograd && !winograd_fits(case, dtype) {
                        continue;
                    }
                    grid.cell(&device, format!("{variant:?} {dtype} {case:?}"), || {
                        run(&device, dtype, case, Some(variant))
                    });
                }
            }
        }
    }
    grid.finish(0);
}
