//! Normalisations and their gradients: devices x dtypes x shapes x {dense, channels-last, strided}, against plain f64.

use netcl_core::Result;
use netcl_core::backend::cpu::set_num_threads;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::kernels::group_limit::force_full_groups;
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_ops::norm::{
    Affine, NormGradients, Normalized, Running, batch_norm, batch_norm_backward, batch_norm_eval, group_norm,
    group_norm_backward, layer_norm, layer_norm_backward, rms_norm, rms_norm_backward,
};

use crate::golden;
use crate::support::{Grid, Tolerance, devices, epsilon, random, supports, tensor};

/// A normalisation under test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Batch,
    BatchEval,
    /// Over so many last axes.
    Layer(usize),
    Rms(usize),
    /// In so many groups.
    Group(usize),
}

const EPS: f64 = 1e-5;

/// A plain computation in f64. `line(i)` and `channel(i)` say which statistics and parameters element i has.
struct Reference {
    line: Vec<usize>,
    channel: Vec<usize>,
    lines: usize,
    channels: usize,
}

impl Reference {
    fn new(kind: Kind, shape: &[usize]) -> Reference {
        let size: usize = shape.iter().product();
        let span: usize = shape.iter().skip(2).product();
        let place = |i: usize| match kind {
            Kind::Batch | Kind::BatchEval => (i / span % shape[1], i / span % shape[1]),
            Kind::Layer(axes) | Kind::Rms(axes) => {
                let n: usize = shape[shape.len() - axes..].iter().product();
                (i / n, i % n)
            }
            Kind::Group(groups) => (i / (shape[1] / groups * span), i / span % shape[1]),
        };
        let (line, channel): (Vec<_>, Vec<_>) = (0..size).map(place).unzip();
        let most = |of: &[usize]| of.iter().max().map_or(0, |m| m + 1);
        Reference { lines: most(&line), channels: most(&channel), line, channel }
    }

    /// Sums per line, or per channel. They carry along what each addition rounds off: float64 is judged by them too.
    fn sums(places: &[usize], n: usize, value: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut sums = vec![(0.0, 0.0); n];
        for (i, &p) in places.iter().enumerate() {
            let (total, lost) = sums[p];
            let (v, sum) = (value(i), total + value(i));
            let part = sum - total;
            sums[p] = (sum, lost + (total - (sum - part)) + (v - part));
        }
        sums.into_iter().map(|(total, lost)| total + lost).collect()
    }

    fn statistics(&self, x: &[f64], centred: bool) -> (Vec<f64>, Vec<f64>) {
        let n = (x.len() / self.lines) as f64;
        let mean: Vec<f64> =
            Self::sums(&self.line, self.lines, |i| x[i]).iter().map(|s| if centred { s / n } else { 0.0 }).collect();
        let var = Self::sums(&self.line, self.lines, |i| (x[i] - mean[self.line[i]]).powi(2));
        (mean, var.iter().map(|v| v / n).collect())
    }

    fn forward(&self, x: &[f64], mean: &[f64], var: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
        let value = |i: usize| {
            let (l, c) = (self.line[i], self.channel[i]);
            let h = (x[i] - mean[l]) / (var[l] + EPS).sqrt();
            h * weight.get(c).unwrap_or(&1.0) + bias.get(c).unwrap_or(&0.0)
        };
        (0..x.len()).map(value).collect()
    }

    /// Gradients of input, weight and bias.
    fn backward(&self, g: &[f64], x: &[f64], mean: &[f64], var: &[f64], weight: &[f64], kind: Kind) -> [Vec<f64>; 3] {
        let h: Vec<f64> =
            (0..x.len()).map(|i| (x[i] - mean[self.line[i]]) / (var[self.line[i]] + EPS).sqrt()).collect();
        let gw: Vec<f64> = (0..x.len()).map(|i| g[i] * weight.get(self.channel[i]).unwrap_or(&1.0)).collect();
        let n = (x.len() / self.lines.max(1)) as f64;
        let plain = Self::sums(&self.line, self.lines, |i| gw[i] / n);
        let mixed = Self::sums(&self.line, self.lines, |i| gw[i] * h[i] / n);
        let input = (0..x.len())
            .map(|i| {
                let l = self.line[i];
                let shift = if matches!(kind, Kind::Rms(_) | Kind::BatchEval) { 0.0 } else { plain[l] };
                let slope = if kind == Kind::BatchEval { 0.0 } else { mixed[l] };
                (gw[i] - shift - h[i] * slope) / (var[l] + EPS).sqrt()
            })
            .collect();
        let d_weight = Self::sums(&self.channel, self.channels, |i| g[i] * h[i]);
        [input, d_weight, Self::sums(&self.channel, self.channels, |i| g[i])]
    }
}

fn forward(kind: Kind, x: &Tensor, affine: Affine<'_>, running: [&Tensor; 2]) -> Result<Normalized> {
    match kind {
        Kind::Batch => batch_norm(x, affine, Some(Running::new(running[0], running[1], 0.25)), EPS),
        Kind::BatchEval => batch_norm_eval(x, affine, running[0], running[1], EPS),
        Kind::Layer(axes) => layer_norm(x, axes, affine, EPS),
        Kind::Rms(axes) => rms_norm(x, axes, affine.weight, EPS),
        Kind::Group(groups) => group_norm(x, groups, affine, EPS),
    }
}

fn backward(kind: Kind, g: &Tensor, x: &Tensor, affine: Affine<'_>, saved: &Normalized) -> Result<NormGradients> {
    let (mean, rstd) = (&saved.mean, &saved.rstd);
    match kind {
        Kind::Batch => batch_norm_backward(g, x, affine, mean, rstd, true),
        Kind::BatchEval => batch_norm_backward(g, x, affine, mean, rstd, false),
        Kind::Layer(axes) => layer_norm_backward(g, x, axes, affine, mean, rstd),
        Kind::Rms(axes) => rms_norm_backward(g, x, axes, affine.weight, rstd),
        Kind::Group(groups) => group_norm_backward(g, x, groups, affine, mean, rstd),
    }
}

/// The shape of the parameters.
fn parameters(kind: Kind, shape: &[usize]) -> &[usize] {
    match kind {
        Kind::Layer(axes) | Kind::Rms(axes) => &shape[shape.len() - axes..],
        _ => &shape[1..2],
    }
}

/// A tensor whose elements lie in memory in some form.
fn view(form: &str, device: &DeviceHandle, shape: &[usize], seed: u64, dtype: DType) -> Tensor {
    let make = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        tensor(&device.queue, &random(n, seed, (-1.0, 3.0)), shape, dtype).0
    };
    match form {
        "channels-last" => make(&[shape[0], shape[2], shape[3], shape[1]]).permute(&[0, 3, 1, 2]).unwrap(),
        "strided" => {
            let mut wide = shape.to_vec();
            wide[0] *= 2;
            make(&wide).slice(0, Slice::new(None, None, -2)).unwrap()
        }
        _ => make(shape),
    }
}

/// Kind, form, shape, and whether there are weight and bias.
type Case = (Kind, &'static str, &'static [usize], bool, bool);

const CASES: [Case; 27] = [
    (Kind::Batch, "dense", &[4, 3, 5, 7], true, true),
    (Kind::Batch, "dense", &[2, 40, 33], true, false),
    (Kind::Batch, "dense", &[37, 5], false, true),
    (Kind::Batch, "dense", &[130, 70, 3], true, true),
    (Kind::Batch, "channels-last", &[3, 6, 9, 8], true, true),
    (Kind::Batch, "strided", &[5, 2, 3000], false, false),
    (Kind::BatchEval, "dense", &[4, 3, 8, 9], true, true),
    (Kind::BatchEval, "dense", &[9, 70], true, true),
    (Kind::BatchEval, "strided", &[1, 4, 40], false, true),
    (Kind::Layer(1), "dense", &[5, 1], true, true),
    (Kind::Layer(1), "dense", &[37, 100], true, true),
    (Kind::Layer(1), "dense", &[3, 1025], true, false),
    (Kind::Layer(2), "dense", &[2, 40, 5, 13], true, true),
    (Kind::Layer(1), "strided", &[70, 33], false, false),
    (Kind::Layer(3), "channels-last", &[3, 4, 5, 6], false, true),
    (Kind::Layer(1), "dense", &[2, 5000], true, true),
    (Kind::Rms(1), "dense", &[33, 65], true, false),
    (Kind::Rms(2), "strided", &[6, 3, 50], false, false),
    (Kind::Group(2), "dense", &[3, 4, 6, 7], true, true),
    (Kind::Group(3), "dense", &[5, 9], true, true),
    (Kind::Group(1), "channels-last", &[2, 3, 5, 5], true, false),
    (Kind::Group(6), "dense", &[2, 6, 700], false, false),
    // Runs of several samples, of one, and of a part of one; channels in parts; rows in several runs.
    (Kind::Batch, "dense", &[70, 3, 9, 9], true, true),
    (Kind::Batch, "dense", &[3, 2, 2300], true, true),
    (Kind::Batch, "dense", &[300, 80], true, true),
    (Kind::Rms(1), "dense", &[40, 2100], true, false),
    (Kind::Group(2), "dense", &[9, 6, 1100], true, true),
];

fn check(device: &DeviceHandle, case: &Case, dtype: DType) -> Result<(), String> {
    let &(kind, form, shape, with_weight, with_bias) = case;
    let queue = &device.queue;
    let x = view(form, device, shape, 1, dtype);
    let g = view(form, device, shape, 2, dtype);
    let of = parameters(kind, shape);
    let count: usize = of.iter().product();
    let make = |seed: u64| tensor(queue, &random(count, seed, (0.5, 1.5)), of, dtype);
    let (weight, weight_values) = make(3);
    let (bias, bias_values) = make(4);
    let affine = Affine { weight: with_weight.then_some(&weight), bias: with_bias.then_some(&bias) };
    let weights = if with_weight { weight_values } else { Vec::new() };
    let biases = if with_bias && !matches!(kind, Kind::Rms(_)) { bias_values } else { Vec::new() };
    let (running_mean, old_mean) = tensor(queue, &random(shape[1], 5, (0.5, 1.5)), [shape[1]], dtype);
    let (running_var, old_var) = tensor(queue, &random(shape[1], 6, (0.5, 1.5)), [shape[1]], dtype);

    let reference = Reference::new(kind, shape);
    let (xs, gs) = (x.to_f64_vec().unwrap(), g.to_f64_vec().unwrap());
    let (mean, var) = match kind {
        Kind::BatchEval => (old_mean.clone(), old_var.clone()),
        _ => reference.statistics(&xs, !matches!(kind, Kind::Rms(_))),
    };
    let text = |e: netcl_core::Error| e.to_string();
    let got = forward(kind, &x, affine, [&running_mean, &running_var]).map_err(text)?;
    let own = matches!(dtype, DType::F16 | DType::BF16).then(|| epsilon(dtype)).unwrap_or(0.0);
    let compute = epsilon(dtype.accumulator());
    let close = |what: &str, got: &Tensor, expected: &[f64], size: f64, narrow: bool| {
        let values = got.to_f64_vec().unwrap();
        let rounding = if narrow { own } else { 0.0 };
        let tolerance = Tolerance { relative: rounding + 32.0 * compute, absolute: size * 32.0 * compute };
        tolerance.check(&values, expected).map_err(|e| format!("{what}: {e}"))
    };
    close("output", &got.output, &reference.forward(&xs, &mean, &var, &weights, &biases), 1.0, true)?;
    close("mean", &got.mean, &mean, 1.0, false)?;
    let rstd: Vec<f64> = var.iter().map(|v| (v + EPS).sqrt().recip()).collect();
    close("rstd", &got.rstd, &rstd, 1.0, false)?;
    if kind == Kind::Batch {
        let n = (xs.len() / shape[1]) as f64;
        let mix = |old: &[f64], new: &[f64], by: f64| -> Vec<f64> {
            old.iter().zip(new).map(|(o, n)| 0.75 * o + 0.25 * n * by).collect()
        };
        close("running mean", &running_mean, &mix(&old_mean, &mean, 1.0), 1.0, true)?;
        close("running var", &running_var, &mix(&old_var, &var, n / (n - 1.0)), 1.0, true)?;
    }
    let [d_input, d_weight, d_bias] = reference.backward(&gs, &xs, &mean, &var, &weights, kind);
    let gradients = backward(kind, &g, &x, affine, &got).map_err(text)?;
    // Differences of sums: as exact as the largest term. A row of one element has a tiny deviation and a huge 1 / std.
    let size = rstd.iter().fold(1.0, |m: f64, v| m.max(*v)) * 4.0;
    close("input gradient", &gradients.input, &d_input, size, true)?;
    let rows = (xs.len() / count.max(1)) as f64;
    match (&gradients.weight, with_weight) {
        (Some(got), true) => close("weight gradient", got, &d_weight, rows.sqrt() * 4.0, true)?,
        (None, false) => {}
        _ => return Err("the weight's gradient is there without a weight, or missing".to_owned()),
    }
    match (&gradients.bias, !biases.is_empty()) {
        (Some(got), true) => close("bias gradient", got, &d_bias, rows.sqrt() * 4.0, true),
        (None, false) => Ok(()),
        _ => Err("the bias's gradient is there without a bias, or missing".to_owned()),
    }
}

#[test]
fn every_normalisation_on_every_device_and_dtype() {
    let mut grid = Grid::new("norm");
    for device in devices() {
        let portable = device.platform_name.contains("Portable");
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (i, case) in CASES.iter().enumerate() {
                // PoCL takes long for a kernel: 32-bit floats, and a sample of the rest.
                if !portable || dtype == DType::F32 || (i + dtype as usize).is_multiple_of(11) {
                    grid.cell(&device, format!("{dtype} {case:?}"), || check(&device, case, dtype));
                }
            }
        }
    }
    grid.finish(4 * CASES.len());
}

/// The kernels of GPUs, by force: whole vectors and single elements, several rows to a group and several items to a row, channels
/// of one element and of many.
#[test]
fn the_form_of_gpus() {
    const CASES: [Case; 12] = [
        (Kind::Layer(1), "dense", &[37, 100], true, true),
        (Kind::Layer(1), "dense", &[3, 1025], true, false),
        (Kind::Layer(2), "strided", &[2, 40, 8, 16], false, false),
        (Kind::Layer(1), "dense", &[40, 4096], true, true),
        (Kind::Rms(1), "dense", &[33, 64], true, false),
        (Kind::Group(2), "dense", &[3, 4, 6, 8], true, true),
        (Kind::Batch, "dense", &[5, 2, 3000], true, true),
        (Kind::Batch, "channels-last", &[3, 6, 8, 8], false, true),
        (Kind::BatchEval, "dense", &[9, 72], true, true),
        // Neighbouring channels in vectors: one part and several, groups of one row and of many.
        (Kind::Batch, "channels-last", &[2, 16, 64, 64], true, true),
        (Kind::Batch, "channels-last", &[3, 264, 5, 3], false, false),
        (Kind::BatchEval, "channels-last", &[2, 24, 6, 5], true, true),
    ];
    let mut grid = Grid::new("norm as on GPUs");
    for device in devices().into_iter().filter(|d| d.backend.name() == "cl") {
        let portable = device.platform_name.contains("Portable");
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (i, case) in CASES.iter().enumerate() {
                // PoCL takes seconds for groups of hundreds of work-items: some cases, of 32-bit floats.
                let chosen = match (portable, dtype) {
                    (true, _) => dtype == DType::F32 && matches!(i, 0 | 6 | 9),
                    (false, DType::F32) => true,
                    (false, _) => (i + dtype as usize).is_multiple_of(5),
                };
                if chosen {
                    let what = format!("{dtype} {case:?}");
                    grid.cell(&device, what, || force_full_groups(|| check(&device, case, dtype)));
                }
            }
        }
    }
    grid.finish(0);
}

/// The input's gradient against differences of the output, in f64.
#[test]
fn gradients_match_finite_differences() {
    let device = manager().cpu();
    for (kind, shape) in [
        (Kind::Batch, &[3usize, 2, 4][..]),
        (Kind::Batch, &[2, 2, 40]),
        (Kind::BatchEval, &[3, 2, 4]),
        (Kind::Layer(1), &[3, 7]),
        (Kind::Rms(1), &[3, 7]),
        (Kind::Group(2), &[2, 4, 3]),
    ] {
        let queue = &device.queue;
        let size: usize = shape.iter().product();
        let of = parameters(kind, shape);
        let count: usize = of.iter().product();
        let values = [random(size, 1, (-1.0, 2.0)), random(count, 2, (0.5, 1.5)), random(count, 3, (0.5, 1.5))];
        let g = random(size, 4, (-1.0, 1.0));
        let fixed = |seed| tensor(queue, &random(shape[1], seed, (0.5, 1.5)), [shape[1]], DType::F64).0;
        let run = |values: &[Vec<f64>; 3]| {
            let [x, weight, bias] = [(&values[0], shape), (&values[1], of), (&values[2], of)]
                .map(|(v, s)| tensor(queue, v, s, DType::F64).0);
            let affine = Affine { weight: Some(&weight), bias: Some(&bias) };
            let y = forward(kind, &x, affine, [&fixed(5), &fixed(6)]).unwrap();
            let g = tensor(queue, &g, shape, DType::F64).0;
            let gradients = backward(kind, &g, &x, affine, &y).unwrap();
            let y = y.output.to_f64_vec().unwrap();
            (y.iter().zip(g.to_f64_vec().unwrap()).map(|(y, g)| y * g).sum::<f64>(), gradients)
        };
        let (_, found) = run(&values);
        let given = [Some(&found.input), found.weight.as_ref(), found.bias.as_ref()];
        for (which, gradient) in given.into_iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            for (i, &got) in gradient.to_f64_vec().unwrap().iter().enumerate() {
                let moved = |by: f64| {
                    let mut values = values.clone();
                    values[which][i] += by;
                    run(&values).0
                };
                let step = 1e-6;
                let expected = (moved(step) - moved(-step)) / (2.0 * step);
                assert!(
                    (got - expected).abs() <= 1e-5 + 1e-3 * expected.abs(),
                    "{kind:?} {shape:?}, operand {which}, element {i}: {got} instead of {expected}"
                );
            }
        }
    }
}

#[test]
fn a_large_mean_costs_no_digits() {
    for device in devices() {
        // 4096 +- 1 in exact binary fractions: x^2 needs more digits than f32 has.
        let values: Vec<f64> =
            random(6000, 7, (-1.0, 1.0)).iter().map(|v| 4096.0 + (v * 1024.0).round() / 1024.0).collect();
        let (x, xs) = tensor(&device.queue, &values, [3, 2, 1000], DType::F32);
        let kinds = [Kind::Batch, Kind::Layer(1), Kind::Group(2)];
        for kind in kinds {
            let reference = Reference::new(kind, &[3, 2, 1000]);
            let (_, var) = reference.statistics(&xs, true);
            let running = [0.0, 1.0].map(|v| Tensor::full(&device.queue, [2], DType::F32, v).unwrap());
            let normal = || forward(kind, &x, Affine::default(), [&running[0], &running[1]]);
            let got = normal().unwrap();
            let rstd: Vec<f64> = var.iter().map(|v| (v + EPS).sqrt().recip()).collect();
            let close = Tolerance { relative: 1e-5, absolute: 0.0 }.check(&got.rstd.to_f64_vec().unwrap(), &rstd);
            close.unwrap_or_else(|e| panic!("{device:?} {kind:?}: {e}"));
        }
    }
}

#[test]
fn nan_and_infinity_spoil_their_own_line_alone() {
    for device in devices() {
        for bad in [f64::NAN, f64::INFINITY] {
            let mut values = random(4 * 90, 8, (-1.0, 1.0));
            values[90 + 31] = bad;
            let (x, _) = tensor(&device.queue, &values, [4, 90], DType::F32);
            let y = layer_norm(&x, 1, Affine::default(), EPS).unwrap().output.to_f64_vec().unwrap();
            for (i, v) in y.iter().enumerate() {
                assert_eq!(v.is_nan(), i / 90 == 1, "{device:?} {bad}: element {i} is {v}");
            }
            for shape in [vec![4, 90], vec![2, 2, 90]] {
                let (x, _) = tensor(&device.queue, &values, shape.as_slice(), DType::F32);
                let y = batch_norm(&x, Affine::default(), None, EPS).unwrap().output.to_f64_vec().unwrap();
                for (i, v) in y.iter().enumerate() {
                    let spoilt = if shape.len() == 2 { i % 90 == 31 } else { i / 90 % 2 == 1 };
                    assert_eq!(v.is_nan(), spoilt, "{device:?} {bad} {shape:?}: element {i} is {v}");
                }
            }
        }
    }
}

#[test]
fn empty_batches_and_clear_errors() {
    for device in devices() {
        let queue = &device.queue;
        let make = |shape: &[usize]| Tensor::full(queue, shape, DType::F32, 1.0).unwrap();
        let x = make(&[0, 3, 4]);
        let [weight, mean, var] = [make(&[3]), make(&[3]), make(&[3])];
        let affine = Affine { weight: Some(&weight), bias: None };
        for kind in [Kind::Batch, Kind::BatchEval, Kind::Group(3)] {
            let y = forward(kind, &x, affine, [&mean, &var]).unwrap();
            assert_eq!(y.output.shape().to_vec(), [0, 3, 4]);
            let back = backward(kind, &x, &x, affine, &y).unwrap();
            assert_eq!(back.input.shape().to_vec(), [0, 3, 4]);
            assert_eq!(back.weight.unwrap().to_f64_vec().unwrap(), [0.0; 3], "{kind:?}");
        }
        assert_eq!(mean.to_f64_vec().unwrap(), [1.0; 3], "an empty batch leaves the averages alone");
        let y = layer_norm(&x, 2, Affine::default(), EPS).unwrap();
        assert_eq!(y.mean.shape().to_vec(), [0]);

        let x = make(&[2, 3, 4]);
        let error = |r: Result<Normalized>| r.unwrap_err().to_string();
        assert_eq!(
            error(batch_norm(&x, Affine { weight: Some(&make(&[4])), bias: None }, None, EPS)),
            "batch_norm: shape (4,) does not fit: weight must have shape [3]"
        );
        assert_eq!(
            error(group_norm(&x, 2, Affine::default(), EPS)),
            "group_norm: shape (2, 3, 4) does not fit: its 3 channels do not make 2 groups of equal size"
        );
        assert_eq!(
            error(layer_norm(&x, 4, Affine::default(), EPS)),
            "layer_norm: shape (2, 3, 4) does not fit: the last 4 axes are to be normalised; use 1 to 3"
        );
        assert!(error(rms_norm(&x, 1, None, -1.0)).contains("eps is -1"));
        assert!(error(batch_norm(&make(&[1, 3]), Affine::default(), None, EPS)).contains("larger batches"));
        assert!(error(batch_norm(&make(&[3]), Affine::default(), None, EPS)).contains("a channel axis"));
        // Intel's runtime crashes now and then in a process that ends with work under way.
        device.queue.finish().unwrap();
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let queue = manager().cpu().queue;
    let (x, _) = tensor(&queue, &random(6 * 9 * 5000, 9, (-1.0, 3.0)), [6, 9, 5000], DType::F32);
    let run = |threads: usize| {
        set_num_threads(threads);
        let mut bits = Vec::new();
        for kind in [Kind::Batch, Kind::Layer(1), Kind::Group(3), Kind::Rms(2)] {
            let running = [0.0, 1.0].map(|v| Tensor::full(&queue, [9], DType::F32, v).unwrap());
            let weight = Tensor::full(&queue, parameters(kind, &[6, 9, 5000]), DType::F32, 1.5).unwrap();
            let affine = Affine { weight: Some(&weight), bias: None };
            let y = forward(kind, &x, affine, [&running[0], &running[1]]).unwrap();
            let back = backward(kind, &x, &x, affine, &y).unwrap();
            for t in [&y.output, &y.mean, &y.rstd, &running[1], &back.input, &back.weight.unwrap()] {
                bits.extend(t.to_host::<f32>().unwrap().into_iter().map(f32::to_bits));
            }
        }
        bits
    };
    let one = run(1);
    assert!(one == run(3) && one == run(16), "results depend on the number of threads");
}

#[test]
fn pytorch_gives_the_same() {
    for device in devices() {
        let (queue, name) = (&device.queue, device.device_name.as_str());
        for case in golden::cases(include_str!("golden/norm.txt")) {
            let [x, weight, grad] = ["x", "weight", "grad"].map(|key| case.tensor(queue, key));
            let bias = case.values("bias").map(|_| case.tensor(queue, "bias"));
            let averages = case.values("old_mean").map(|_| ["old_mean", "old_var"].map(|key| case.tensor(queue, key)));
            let affine = Affine { weight: Some(&weight), bias: bias.as_ref() };
            let kind = match case.name.as_str() {
                "batch_norm" => Kind::Batch,
                "batch_norm_eval" => Kind::BatchEval,
                "layer_norm" => Kind::Layer(1),
                "group_norm" => Kind::Group(2),
                "rms_norm" => Kind::Rms(1),
                other => panic!("the golden file has a case {other}"),
            };
            let y = match (&averages, kind) {
                (Some([mean, var]), Kind::Batch) => {
                    let y = batch_norm(&x, affine, Some(Running::new(mean, var, 0.3)), EPS).unwrap();
                    case.check(name, "new_mean", mean);
                    case.check(name, "new_var", var);
                    y
                }
                (Some([mean, var]), _) => forward(kind, &x, affine, [mean, var]).unwrap(),
                (None, _) => forward(kind, &x, affine, [&x, &x]).unwrap(),
            };
            case.check(name, "y", &y.output);
            let back = backward(kind, &grad, &x, affine, &y).unwrap();
            case.check(name, "d_x", &back.input);
            case.check(name, "d_weight", &back.weight.unwrap());
            if let Some(d_bias) = back.bias {
                case.check(name, "d_bias", &d_bias);
            }
        }
    }
}
