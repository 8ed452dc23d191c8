//! Resampling and padding with their gradients: devices x dtypes x geometries, against plain f64.

use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_ops::pad::{PadMode, pad, pad_backward};
use netcl_ops::resample::{
    Resize, upsample_bilinear, upsample_bilinear_backward, upsample_nearest, upsample_nearest_backward,
};

use crate::golden;
use crate::support::{Grid, Tolerance, devices, epsilon, random, supports, tensor};

/// A linear operation as its parts: result i is the sum of (element, factor).
type Parts = Vec<Vec<(usize, f64)>>;

fn apply(parts: &Parts, x: &[f64]) -> Vec<f64> {
    parts.iter().map(|parts| parts.iter().map(|&(i, by)| x[i] * by).sum()).collect()
}

fn transposed(parts: &Parts, grad: &[f64], size: usize) -> Vec<f64> {
    let mut to = vec![0.0; size];
    for (parts, g) in parts.iter().zip(grad) {
        parts.iter().for_each(|&(i, by)| to[i] += g * by);
    }
    to
}

/// Combines parts along axes into parts of the whole, row-major.
fn outer_product(axes: &[(usize, Parts)]) -> Parts {
    axes.iter().fold(vec![vec![(0, 1.0)]], |whole, (length, axis)| {
        whole
            .iter()
            .flat_map(|before| {
                axis.iter().map(move |now| {
                    let pair = |&(i, by): &(usize, f64), &(j, with): &(usize, f64)| (i * length + j, by * with);
                    before.iter().flat_map(|b| now.iter().map(move |n| pair(b, n))).collect::<Vec<_>>()
                })
            })
            .collect()
    })
}

fn plain(length: usize) -> (usize, Parts) {
    (length, (0..length).map(|i| vec![(i, 1.0)]).collect())
}

// ---- resampling ------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug)]
enum Mode {
    Nearest,
    Bilinear(bool),
}

/// The definition, with positions rounded to f32 where the operation does so.
fn resampled(input: usize, output: usize, factor: Option<f64>, mode: Mode, narrow: bool) -> Parts {
    let round = |v: f64| if narrow { f64::from(v as f32) } else { v };
    let scale = round(match (mode, factor) {
        (Mode::Bilinear(true), _) if output > 1 => (input - 1) as f64 / (output - 1) as f64,
        (Mode::Bilinear(true), _) => 0.0,
        (_, Some(factor)) => 1.0 / factor,
        _ => input as f64 / output as f64,
    });
    (0..output)
        .map(|o| match mode {
            Mode::Nearest => vec![((round(o as f64 * scale) as usize).min(input - 1), 1.0)],
            Mode::Bilinear(corners) => {
                let at = if corners { o as f64 * scale } else { ((o as f64 + 0.5) * scale - 0.5).max(0.0) };
                let first = (at as usize).min(input - 1);
                let share = (at - first as f64).min(1.0);
                vec![(first, 1.0 - share), ((first + 1).min(input - 1), share)]
            }
        })
        .collect()
}

const RESIZES: [([usize; 2], Resize); 9] = [
    ([3, 4], Resize::Scale([2.0, 2.0])),
    ([3, 4], Resize::Scale([1.0, 3.0])),
    ([5, 7], Resize::Size([13, 11])),
    ([9, 10], Resize::Size([4, 3])),
    ([1, 6], Resize::Size([4, 1])),
    ([4, 1], Resize::Size([1, 5])),
    ([6, 5], Resize::Scale([1.5, 2.7])),
    ([8, 9], Resize::Scale([0.5, 0.4])),
    ([3, 40], Resize::Size([3, 40])),
];

const MODES: [Mode; 3] = [Mode::Nearest, Mode::Bilinear(false), Mode::Bilinear(true)];

fn resize(x: &Tensor, to: Resize, mode: Mode) -> netcl_core::Result<Tensor> {
    match mode {
        Mode::Nearest => upsample_nearest(x, to),
        Mode::Bilinear(corners) => upsample_bilinear(x, to, corners),
    }
}

fn resize_backward(g: &Tensor, shape: &Shape, to: Resize, mode: Mode) -> netcl_core::Result<Tensor> {
    match mode {
        Mode::Nearest => upsample_nearest_backward(g, shape, to),
        Mode::Bilinear(corners) => upsample_bilinear_backward(g, shape, to, corners),
    }
}

fn check_resize(device: &DeviceHandle, index: usize, mode: Mode, dtype: DType) -> Result<(), String> {
    let ([height, width], to) = RESIZES[index];
    let (output, factors) = match to {
        Resize::Size(size) => (size, [None; 2]),
        Resize::Scale(by) => ([(height as f64 * by[0]) as usize, (width as f64 * by[1]) as usize], by.map(Some)),
    };
    let narrow = dtype != DType::F64;
    let parts = outer_product(&[
        plain(2),
        plain(3),
        (height, resampled(height, output[0], factors[0], mode, narrow)),
        (width, resampled(width, output[1], factors[1], mode, narrow)),
    ]);
    // Every other time a view whose channels lie innermost.
    let shape = Shape::from([2, 3, height, width]);
    let values = random(shape.size(), 1, (-1.0, 1.0));
    let x = if index.is_multiple_of(2) {
        tensor(&device.queue, &values, shape.clone(), dtype).0
    } else {
        tensor(&device.queue, &values, [2, height, width, 3], dtype).0.permute(&[0, 3, 1, 2]).unwrap()
    };
    let xs = x.to_f64_vec().unwrap();
    // Positions are rounded to f32; a share is off by as much as the position.
    let slack = if narrow { f64::from(f32::EPSILON) * height.max(width) as f64 * 4.0 } else { 1e-13 };
    let own = if dtype == dtype.accumulator() { 0.0 } else { epsilon(dtype) };
    let close = |what: &str, got: &Tensor, expected: &[f64], size: f64| {
        let absolute = if matches!(mode, Mode::Nearest) { size * epsilon(dtype.accumulator()) } else { slack * size };
        let tolerance = Tolerance { relative: own + 8.0 * epsilon(dtype.accumulator()), absolute };
        tolerance.check(&got.to_f64_vec().unwrap(), expected).map_err(|e| format!("{what}: {e}"))
    };
    let got = resize(&x, to, mode).map_err(|e| e.to_string())?;
    if got.shape().to_vec() != [2, 3, output[0], output[1]] {
        return Err(format!("shape {}", got.shape()));
    }
    close("output", &got, &apply(&parts, &xs), 1.0)?;
    let (g, gs) = tensor(&device.queue, &random(got.size(), 2, (-1.0, 1.0)), got.shape().clone(), dtype);
    let back = resize_backward(&g, &shape, to, mode).map_err(|e| e.to_string())?;
    // As many results went into an element as there are per element, and their neighbours'.
    let per = (got.size() as f64 / shape.size() as f64).max(1.0) * 4.0;
    close("gradient", &back, &transposed(&parts, &gs, shape.size()), per)
}

// ---- padding ---------------------------------------------------------------------------------------------------

/// Shape and padding of the last axes.
type Padding = (&'static [usize], &'static [(isize, isize)]);

const PADS: [Padding; 8] = [
    (&[5], &[(2, 3)]),
    (&[3, 4], &[(1, 0), (2, 3)]),
    (&[2, 3, 4, 5], &[(1, 2), (0, 4)]),
    (&[2, 3, 4, 5], &[(1, 2), (2, 1), (3, 3)]),
    (&[2, 3, 2, 4, 3], &[(1, 1), (2, 0), (1, 1), (0, 3), (2, 2)]),
    (&[4, 70], &[(0, 0), (33, 1)]),
    (&[3, 1, 4], &[(0, 0), (1, 1)]),
    (&[2, 3], &[]),
];

/// Only for constants: negative numbers crop.
const CROPS: [Padding; 4] = [
    (&[4, 5], &[(-1, 2), (1, -3)]),
    (&[2, 6, 7], &[(-2, -2), (-1, 0)]),
    (&[4], &[(3, -6)]),
    (&[3, 4], &[(1, 1), (-2, -2)]),
];

const PAD_MODES: [PadMode; 4] = [PadMode::Constant(0.5), PadMode::Reflect, PadMode::Replicate, PadMode::Circular];

fn padded(length: usize, (before, after): (isize, isize), mode: PadMode) -> Parts {
    let n = length as isize;
    (0..n + before + after)
        .map(|o| match (o - before, mode) {
            (at, _) if (0..n).contains(&at) => vec![(at as usize, 1.0)],
            (_, PadMode::Constant(_)) => vec![],
            (at, PadMode::Replicate) => vec![(if at < 0 { 0 } else { length - 1 }, 1.0)],
            (at, PadMode::Circular) => vec![(at.rem_euclid(n) as usize, 1.0)],
            (at, PadMode::Reflect) => vec![(if at < 0 { -at } else { 2 * (n - 1) - at } as usize, 1.0)],
        })
        .collect()
}

fn check_pad(device: &DeviceHandle, (shape, pads): Padding, mode: PadMode, dtype: DType) -> Result<(), String> {
    let first = shape.len() - pads.len();
    let axes: Vec<(usize, Parts)> = shape
        .iter()
        .enumerate()
        .map(|(a, &n)| if a < first { plain(n) } else { (n, padded(n, pads[a - first], mode)) })
        .collect();
    let parts = outer_product(&axes);
    let (x, xs) = tensor(&device.queue, &random(shape.iter().product(), 1, (-1.0, 1.0)), shape, dtype);
    let got = pad(&x, pads, mode).map_err(|e| e.to_string())?;
    let lengths: Vec<usize> = axes.iter().map(|(_, parts)| parts.len()).collect();
    if got.shape().to_vec() != lengths {
        return Err(format!("shape {} instead of {lengths:?}", got.shape()));
    }
    let mut expected = apply(&parts, &xs);
    if let PadMode::Constant(value) = mode {
        expected.iter_mut().zip(&parts).filter(|(_, parts)| parts.is_empty()).for_each(|(v, _)| *v = value);
    }
    if got.to_f64_vec().unwrap() != expected {
        return Err(format!("{:?} instead of {expected:?}", got.to_f64_vec().unwrap()));
    }
    let (g, gs) = tensor(&device.queue, &random(got.size(), 2, (-1.0, 1.0)), got.shape().clone(), dtype);
    let back = pad_backward(&g, x.shape(), pads, mode).map_err(|e| e.to_string())?;
    // Several groups of axes round in between.
    let steps = pads.len().div_ceil(3) as f64;
    let tolerance = Tolerance { relative: steps * epsilon(dtype), absolute: 64.0 * epsilon(dtype) * steps / 8.0 };
    tolerance
        .check(&back.to_f64_vec().unwrap(), &transposed(&parts, &gs, xs.len()))
        .map_err(|e| format!("gradient: {e}"))
}

#[test]
fn every_geometry_on_every_device_and_dtype() {
    let mut grid = Grid::new("resample and pad");
    for device in devices() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            // PoCL takes long for a kernel; one of the 16-bit types is enough there.
            if dtype == DType::F16 && device.platform_name.contains("Portable") {
                continue;
            }
            for (index, case) in RESIZES.iter().enumerate() {
                for mode in MODES {
                    let what = format!("{dtype} {mode:?} {case:?}");
                    grid.cell(&device, what, || check_resize(&device, index, mode, dtype));
                }
            }
            // 0.5 is exact in every dtype. Axes of length 1 and paddings as long as the axis have no mirror image.
            for (index, case) in PADS.into_iter().chain(CROPS).enumerate() {
                let below = |most: isize| {
                    case.0.iter().rev().zip(case.1.iter().rev()).all(|(&n, p)| p.0.max(p.1) < n as isize + most)
                };
                for mode in PAD_MODES {
                    let fits = match mode {
                        PadMode::Constant(_) => true,
                        PadMode::Reflect => index < PADS.len() && below(0),
                        PadMode::Circular => index < PADS.len() && below(1),
                        PadMode::Replicate => index < PADS.len(),
                    };
                    if fits {
                        let what = format!("{dtype} {mode:?} {case:?}");
                        grid.cell(&device, what, || check_pad(&device, case, mode, dtype));
                    }
                }
            }
        }
    }
    grid.finish(4 * (27 + 25));
}

/// Both are linear, so differences are exact up to rounding.
#[test]
fn gradients_match_finite_differences() {
    let queue = manager().cpu().queue;
    let shape = Shape::from([1, 4, 5]);
    let x = random(20, 3, (-1.0, 1.0));
    type Op = Box<dyn Fn(&Tensor) -> Tensor>;
    type Back = Box<dyn Fn(&Tensor) -> Tensor>;
    let mut ops: Vec<(String, Op, Back)> = Vec::new();
    for mode in MODES {
        let (to, of) = (Resize::Size([7, 3]), shape.clone());
        ops.push((
            format!("{mode:?}"),
            Box::new(move |x| resize(x, to, mode).unwrap()),
            Box::new(move |g| resize_backward(g, &of, to, mode).unwrap()),
        ));
    }
    for mode in PAD_MODES {
        let (pads, of) = ([(1, 2), (3, 0)], shape.clone());
        ops.push((
            format!("{mode:?}"),
            Box::new(move |x| pad(x, &pads, mode).unwrap()),
            Box::new(move |g| pad_backward(g, &of, &pads, mode).unwrap()),
        ));
    }
    for (name, op, back) in ops {
        let make = |values: &[f64]| tensor(&queue, values, shape.clone(), DType::F64).0;
        let y = op(&make(&x));
        let (g, gs) = tensor(&queue, &random(y.size(), 4, (-1.0, 1.0)), y.shape().clone(), DType::F64);
        let value = |x: &[f64]| op(&make(x)).to_f64_vec().unwrap().iter().zip(&gs).map(|(y, g)| y * g).sum::<f64>();
        for (i, got) in back(&g).to_f64_vec().unwrap().into_iter().enumerate() {
            let moved = |by: f64| {
                let mut x = x.clone();
                x[i] += by;
                value(&x)
            };
            let expected = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            assert!((got - expected).abs() <= 1e-5 + 1e-3 * expected.abs(), "{name} {i}: {got} instead of {expected}");
        }
    }
}

#[test]
fn empty_batches_and_clear_errors() {
    for device in devices() {
        let make = |shape: &[usize]| Tensor::full(&device.queue, shape, DType::F32, 1.0).unwrap();
        let x = make(&[0, 3, 4, 4]);
        assert_eq!(upsample_nearest(&x, 2.0).unwrap().shape().to_vec(), [0, 3, 8, 8]);
        assert_eq!(upsample_bilinear_backward(&x, x.shape(), [4, 4], true).unwrap().size(), 0);
        assert_eq!(pad(&x, &[(1, 1)], PadMode::Reflect).unwrap().shape().to_vec(), [0, 3, 4, 6]);
        // A constant can pad even nothing.
        let y = pad(&make(&[0]), &[(1, 2)], PadMode::Constant(7.0)).unwrap();
        assert_eq!(y.to_f64_vec().unwrap(), [7.0; 3]);
        assert_eq!(
            pad_backward(&make(&[0]), &[4].into(), &[(-2, -2)], PadMode::Constant(0.0)).unwrap().to_f64_vec().unwrap(),
            [0.0; 4]
        );

        let x = make(&[1, 4, 4]);
        let error = |r: netcl_core::Result<Tensor>| r.unwrap_err().to_string();
        assert_eq!(error(upsample_nearest(&x, 0.0)), "upsample_nearest: a factor of 0 cannot be used; use one above 0");
        assert!(error(upsample_nearest(&x, [0, 3])).contains("an axis of length 4 cannot be resampled to 0"));
        assert!(error(upsample_nearest(&make(&[4]), 2.0)).contains("height and width"));
        assert_eq!(
            error(pad(&x, &[(4, 0)], PadMode::Reflect)),
            "pad: shape (1, 4, 4) does not fit: an axis of length 4 can be reflected by at most 3, not 4"
        );
        assert!(error(pad(&x, &[(0, 5)], PadMode::Circular)).contains("can go round by at most 4, not 5"));
        assert!(error(pad(&x, &[(-1, 0)], PadMode::Replicate)).contains("only constant padding may be negative"));
        assert!(error(pad(&x, &[(-3, -2)], PadMode::Constant(0.0))).contains("cuts off more than there is"));
        assert!(error(pad(&x, &[(0, 0); 4], PadMode::Reflect)).contains("at most one for each axis"));
        assert!(error(pad(&make(&[2, 0]), &[(1, 0)], PadMode::Replicate)).contains("no edge to repeat"));
        let wrong = error(pad_backward(&x, x.shape(), &[(1, 1)], PadMode::Reflect));
        assert!(wrong.contains("the output's gradient must have shape [1, 4, 6]"), "{wrong}");
        // Intel's runtime crashes now and then in a process that ends with work under way.
        device.queue.finish().unwrap();
    }
}

#[test]
fn pytorch_gives_the_same() {
    for device in devices() {
        let (queue, name) = (&device.queue, device.device_name.as_str());
        for case in golden::cases(include_str!("golden/resample_pad.txt")) {
            let [x, grad] = ["x", "grad"].map(|key| case.tensor(queue, key));
            let mode = match case.name.as_str() {
                "nearest" => Some(Mode::Nearest),
                "bilinear" => Some(Mode::Bilinear(false)),
                "bilinear_corners" => Some(Mode::Bilinear(true)),
                _ => None,
            };
            if let Some(mode) = mode {
                let to = match (case.values("size"), case.values("scale_factor")) {
                    (Some(size), _) => Resize::Size([size[0] as usize, size[1] as usize]),
                    (_, Some(by)) => Resize::Scale([by[0], by[1]]),
                    _ => panic!("{} has neither a size nor a factor", case.name),
                };
                case.check(name, "y", &resize(&x, to, mode).unwrap());
                case.check(name, "d_x", &resize_backward(&grad, x.shape(), to, mode).unwrap());
                continue;
            }
            let mode = match case.name.as_str() {
                "reflect" => PadMode::Reflect,
                "replicate" => PadMode::Replicate,
                "circular" => PadMode::Circular,
                "constant" => PadMode::Constant(0.5),
                other => panic!("the golden file has a case {other}"),
            };
            let pads: Vec<isize> = case.values("pads").unwrap().iter().map(|&v| v as isize).collect();
            let pads = [(pads[0], pads[1]), (pads[2], pads[3])];
            case.check(name, "y", &pad(&x, &pads, mode).unwrap());
            case.check(name, "d_x", &pad_backward(&grad, x.shape(), &pads, mode).unwrap());
        }
    }
}
