//! Pooling and its gradients: devices x dtypes x geometries, against plain f64.

use netcl_core::backend::Queue;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_ops::pool::{
    Averaging, MaxPooled, Window, adaptive_avg_pool1d, adaptive_avg_pool1d_backward, adaptive_avg_pool2d,
    adaptive_avg_pool2d_backward, adaptive_max_pool1d, adaptive_max_pool1d_backward, adaptive_max_pool2d,
    adaptive_max_pool2d_backward, avg_pool1d, avg_pool1d_backward, avg_pool2d, avg_pool2d_backward, max_pool1d,
    max_pool1d_backward, max_pool2d, max_pool2d_backward,
};

use crate::golden;
use crate::support::{Grid, Tolerance, devices, epsilon, random, supports, tensor};

/// Windows under test.
#[derive(Clone, Copy, Debug)]
enum Windows {
    Fixed(Window<2>),
    Adaptive([usize; 2]),
}

const fn window(
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    ceil: bool,
) -> Windows {
    Windows::Fixed(Window { kernel, stride, padding, dilation, ceil_mode: ceil })
}

/// The input's height and width, and the windows.
const CASES: [([usize; 2], Windows); 21] = [
    ([8, 8], window([2, 2], [2, 2], [0, 0], [1, 1], false)),
    ([9, 7], window([3, 3], [2, 2], [1, 1], [1, 1], false)),
    ([9, 7], window([3, 2], [1, 1], [1, 0], [1, 1], false)),
    ([10, 11], window([3, 3], [2, 3], [1, 1], [1, 1], true)),
    ([7, 7], window([2, 2], [2, 2], [0, 0], [1, 1], true)),
    ([13, 12], window([3, 3], [2, 1], [1, 1], [2, 3], false)),
    ([12, 40], window([2, 5], [3, 1], [0, 2], [1, 2], true)),
    ([1, 33], window([1, 3], [1, 2], [0, 1], [1, 1], false)),
    ([5, 5], window([5, 5], [1, 1], [2, 2], [1, 1], false)),
    // Windows that step over the input: their elements all lie in the padding.
    ([1, 1], window([2, 2], [1, 1], [2, 2], [4, 4], false)),
    ([7, 9], Windows::Adaptive([1, 1])),
    ([7, 9], Windows::Adaptive([7, 9])),
    ([7, 9], Windows::Adaptive([3, 4])),
    ([8, 8], Windows::Adaptive([4, 2])),
    ([3, 4], Windows::Adaptive([5, 7])),
    ([1, 50], Windows::Adaptive([1, 7])),
    // Rows of eight windows or more that lie inside the plane, with and without others beside them.
    ([4, 32], window([2, 2], [2, 2], [0, 0], [1, 1], false)),
    ([5, 37], window([3, 3], [2, 2], [1, 1], [1, 1], true)),
    ([6, 35], window([1, 1], [1, 2], [0, 0], [1, 1], false)),
    ([5, 61], window([2, 3], [1, 2], [1, 2], [1, 2], false)),
    ([9, 41], window([3, 3], [3, 3], [1, 1], [1, 1], false)),
];

/// The elements of each window along one axis, how many it would have with padding, and with its reach cut at the padding.
fn axis(input: usize, windows: Windows, a: usize) -> Vec<(Vec<usize>, usize)> {
    match windows {
        Windows::Adaptive(output) => (0..output[a])
            .map(|o| {
                let start = o * input / output[a];
                let end = ((o + 1) * input).div_ceil(output[a]);
                ((start..end).collect(), end - start)
            })
            .collect(),
        Windows::Fixed(w) => {
            let (kernel, stride, pad, step) = (w.kernel[a], w.stride[a], w.padding[a] as isize, w.dilation[a]);
            let room = input as isize + 2 * pad - (step * (kernel - 1) + 1) as isize;
            let mut output = if w.ceil_mode { (room as usize).div_ceil(stride) } else { room as usize / stride } + 1;
            if w.ceil_mode && (output - 1) * stride >= input + pad as usize {
                output -= 1;
            }
            (0..output)
                .map(|o| {
                    let places = (0..kernel).map(|k| (o * stride + k * step) as isize - pad);
                    let inside = places.clone().filter(|p| (0..input as isize).contains(p)).map(|p| p as usize);
                    (inside.collect(), places.filter(|p| *p < input as isize + pad).count())
                })
                .collect()
        }
    }
}

/// For every window of a plane its elements, in order, and the number that divides its sum.
fn windows(lengths: [usize; 2], of: Windows, averaging: Averaging) -> ([usize; 2], Vec<(Vec<usize>, f64)>) {
    let (rows, columns) = (axis(lengths[0], of, 0), axis(lengths[1], of, 1));
    let mut list = Vec::new();
    for (r, r_padded) in &rows {
        for (c, c_padded) in &columns {
            let places = r.iter().flat_map(|r| c.iter().map(move |c| r * lengths[1] + c)).collect::<Vec<_>>();
            let padded = averaging.count_include_pad && matches!(of, Windows::Fixed(_));
            let count = if padded { r_padded * c_padded } else { places.len() };
            list.push((places, averaging.divisor.unwrap_or(count) as f64));
        }
    }
    ([rows.len(), columns.len()], list)
}

const PLANES: [usize; 2] = [2, 3];

struct Case {
    shape: Shape,
    size: usize,
    windows: Vec<(Vec<usize>, f64)>,
    outputs: Vec<usize>,
}

impl Case {
    fn new((lengths, of): ([usize; 2], Windows), averaging: Averaging) -> Case {
        let (outputs, windows) = windows(lengths, of, averaging);
        let shape = |[h, w]: [usize; 2]| vec![PLANES[0], PLANES[1], h, w];
        Case { shape: shape(lengths).into(), size: lengths[0] * lengths[1], windows, outputs: shape(outputs) }
    }

    /// Maxima and places of all planes.
    fn max(&self, x: &[f64]) -> (Vec<f64>, Vec<i64>) {
        let mut found = (Vec::new(), Vec::new());
        for plane in x.chunks(self.size) {
            for (places, _) in &self.windows {
                let mut best = (f64::NEG_INFINITY, -1);
                for &p in places {
                    if best.1 < 0 || plane[p] > best.0 || plane[p].is_nan() {
                        best = (plane[p], p as i64);
                    }
                }
                found.0.push(best.0);
                found.1.push(best.1);
            }
        }
        found
    }

    fn average(&self, x: &[f64]) -> Vec<f64> {
        let plane = |plane: &[f64]| -> Vec<f64> {
            self.windows.iter().map(|(places, by)| places.iter().map(|&p| plane[p]).sum::<f64>() / by).collect()
        };
        x.chunks(self.size).flat_map(plane).collect()
    }

    /// Adds each result's gradient to its elements, with a weight.
    fn spread(&self, grad: &[f64], each: impl Fn(usize, &mut dyn FnMut(usize, f64))) -> Vec<f64> {
        let mut to = vec![0.0; grad.len() / self.windows.len() * self.size];
        for (i, g) in grad.iter().enumerate() {
            each(i, &mut |place, by| to[i / self.windows.len() * self.size + place] += g * by);
        }
        to
    }

    fn max_backward(&self, grad: &[f64], places: &[i64]) -> Vec<f64> {
        self.spread(grad, |i, add| {
            if places[i] >= 0 {
                add(places[i] as usize, 1.0);
            }
        })
    }

    fn average_backward(&self, grad: &[f64]) -> Vec<f64> {
        self.spread(grad, |i, add| {
            let (places, by) = &self.windows[i % self.windows.len()];
            places.iter().for_each(|&p| add(p, by.recip()));
        })
    }
}

fn max(x: &Tensor, of: Windows) -> netcl_core::Result<MaxPooled> {
    match of {
        Windows::Fixed(window) => max_pool2d(x, &window),
        Windows::Adaptive(output) => adaptive_max_pool2d(x, output),
    }
}

fn max_backward(g: &Tensor, shape: &Shape, y: &MaxPooled, of: Windows) -> netcl_core::Result<Tensor> {
    match of {
        Windows::Fixed(window) => max_pool2d_backward(g, shape, &y.indices, &window),
        Windows::Adaptive(_) => adaptive_max_pool2d_backward(g, shape, &y.indices),
    }
}

fn average(x: &Tensor, of: Windows, averaging: Averaging) -> netcl_core::Result<Tensor> {
    match of {
        Windows::Fixed(window) => avg_pool2d(x, &window, averaging),
        Windows::Adaptive(output) => adaptive_avg_pool2d(x, output),
    }
}

fn average_backward(g: &Tensor, shape: &Shape, of: Windows, averaging: Averaging) -> netcl_core::Result<Tensor> {
    match of {
        Windows::Fixed(window) => avg_pool2d_backward(g, shape, &window, averaging),
        Windows::Adaptive(_) => adaptive_avg_pool2d_backward(g, shape),
    }
}

fn has_dilation(of: Windows) -> bool {
    matches!(of, Windows::Fixed(w) if w.dilation != [1, 1])
}

/// An input whose channels lie innermost in memory every other time.
fn input(queue: &Queue, shape: &Shape, dtype: DType, last: bool) -> Tensor {
    let values = random(shape.size(), 1, (-2.0, 1.0));
    if !last {
        return tensor(queue, &values, shape.clone(), dtype).0;
    }
    let stored = [shape[0], shape[2], shape[3], shape[1]];
    tensor(queue, &values, stored, dtype).0.permute(&[0, 3, 1, 2]).unwrap()
}

const AVERAGES: [Averaging; 3] = [
    Averaging { count_include_pad: true, divisor: None },
    Averaging { count_include_pad: false, divisor: None },
    Averaging { count_include_pad: true, divisor: Some(3) },
];

fn check(device: &DeviceHandle, index: usize, dtype: DType) -> Result<(), String> {
    let (queue, of) = (&device.queue, CASES[index].1);
    let text = |e: netcl_core::Error| e.to_string();
    let tolerance = Tolerance { relative: 8.0 * epsilon(dtype), absolute: 16.0 * epsilon(dtype.accumulator()) };
    let close = |what: &str, got: &Tensor, expected: &[f64]| {
        tolerance.check(&got.to_f64_vec().unwrap(), expected).map_err(|e| format!("{what}: {e}"))
    };

    let case = Case::new(CASES[index], Averaging::default());
    let x = input(queue, &case.shape, dtype, index % 2 == 1);
    let xs = x.to_f64_vec().unwrap();
    let results: usize = case.outputs.iter().product();
    let (g, gs) = tensor(queue, &random(results, 2, (-1.0, 1.0)), case.outputs.as_slice(), dtype);
    let (expected, places) = case.max(&xs);
    let got = max(&x, of).map_err(text)?;
    if got.output.shape().to_vec() != case.outputs || got.output.to_f64_vec().unwrap() != expected {
        return Err(format!("maximum: {:?} instead of {expected:?}", got.output.to_f64_vec().unwrap()));
    }
    if got.indices.to_host().unwrap() != places {
        return Err(format!("places: {:?} instead of {places:?}", got.indices.to_host().unwrap()));
    }
    let back = max_backward(&g, &case.shape, &got, of).map_err(text)?;
    close("gradient of the maximum", &back, &case.max_backward(&gs, &places))?;

    if !has_dilation(of) {
        let averages = if matches!(of, Windows::Fixed(_)) { &AVERAGES[..] } else { &AVERAGES[..1] };
        for &averaging in averages {
            let case = Case::new(CASES[index], averaging);
            close("average", &average(&x, of, averaging).map_err(text)?, &case.average(&xs))?;
            let back = average_backward(&g, &case.shape, of, averaging).map_err(text)?;
            close("gradient of the average", &back, &case.average_backward(&gs))?;
        }
    }
    Ok(())
}

#[test]
fn every_pooling_on_every_device_and_dtype() {
    let mut grid = Grid::new("pool");
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
            for (index, case) in CASES.iter().enumerate() {
                grid.cell(&device, format!("{dtype} {case:?}"), || check(&device, index, dtype));
            }
        }
    }
    grid.finish(4 * CASES.len());
}

/// Pooling is piecewise linear: differences are exact up to rounding, away from ties.
#[test]
fn gradients_match_finite_differences() {
    let queue = manager().cpu().queue;
    for (lengths, of) in [CASES[1], CASES[3], CASES[5], CASES[12]] {
        let shape = Shape::from([1, 2, lengths[0], lengths[1]]);
        let x = random(shape.size(), 3, (-1.0, 1.0));
        let make = |values: &[f64]| tensor(&queue, values, shape.clone(), DType::F64).0;
        let pooled = max(&make(&x), of).unwrap();
        let (g, gs) =
            tensor(&queue, &random(pooled.output.size(), 4, (-1.0, 1.0)), pooled.output.shape().clone(), DType::F64);
        let dot = |y: Tensor| y.to_f64_vec().unwrap().iter().zip(&gs).map(|(y, g)| y * g).sum::<f64>();
        type Value<'v> = Box<dyn Fn(&Tensor) -> f64 + 'v>;
        let mut pairs: Vec<(&str, Tensor, Value<'_>)> = vec![(
            "max",
            max_backward(&g, &shape, &pooled, of).unwrap(),
            Box::new(|x: &Tensor| dot(max(x, of).unwrap().output)),
        )];
        if !has_dilation(of) {
            let back = average_backward(&g, &shape, of, AVERAGES[1]).unwrap();
            pairs.push(("average", back, Box::new(|x: &Tensor| dot(average(x, of, AVERAGES[1]).unwrap()))));
        }
        for (name, gradient, value) in pairs {
            for (i, got) in gradient.to_f64_vec().unwrap().into_iter().enumerate() {
                let moved = |by: f64| {
                    let mut x = x.clone();
                    x[i] += by;
                    value(&make(&x))
                };
                let expected = (moved(1e-6) - moved(-1e-6)) / 2e-6;
                assert!((got - expected).abs() <= 1e-5 + 1e-3 * expected.abs(), "{name} {of:?} {i}: {got} {expected}");
            }
        }
    }
}

#[test]
fn nan_wins_and_infinities_are_numbers() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for device in devices() {
        let rows =
            [[1.0, nan, 3.0, 2.0], [0.0, 5.0, -inf, -inf], [-inf, -inf, nan, 1.0], [-inf, -inf, inf, nan]].concat();
        let (x, _) = tensor(&device.queue, &rows, [1, 4, 4], DType::F32);
        for y in [max_pool2d(&x, &Window::new([2, 2])).unwrap(), adaptive_max_pool2d(&x, [2, 2]).unwrap()] {
            let got = y.output.to_f64_vec().unwrap();
            assert!(got[0].is_nan() && got[1] == 3.0 && got[2] == -inf && got[3].is_nan(), "{device:?}: {got:?}");
            // The last NaN, as in PyTorch; the first element where all are minus infinity.
            assert_eq!(y.indices.to_host().unwrap(), [1, 2, 8, 15], "{device:?}");
        }
        let got = avg_pool2d(&x, &Window::new([2, 2]), Averaging::default()).unwrap().to_f64_vec().unwrap();
        assert!(got[0].is_nan() && got[1] == -inf && got[2] == -inf && got[3].is_nan(), "{device:?}: {got:?}");
    }
}

#[test]
fn lines_are_planes_of_height_one() {
    for device in devices() {
        let (x, xs) = tensor(&device.queue, &random(3 * 17, 5, (-1.0, 1.0)), [3, 17], DType::F32);
        let flat = Window { kernel: [3], stride: [2], padding: [1], dilation: [1], ceil_mode: true };
        let of = window([1, 3], [1, 2], [0, 1], [1, 1], true);
        let averaging = AVERAGES[1];
        let (outputs, list) = windows([1, 17], of, averaging);
        let case = Case { shape: [3, 17].into(), size: 17, windows: list, outputs: vec![3, outputs[1]] };
        let (expected, places) = case.max(&xs);
        let y = max_pool1d(&x, &flat).unwrap();
        assert_eq!((y.output.to_f64_vec().unwrap(), y.indices.to_host().unwrap()), (expected, places.clone()));
        assert_eq!(y.output.shape().to_vec(), case.outputs);
        let close = |got: netcl_core::Result<Tensor>, expected: &[f64]| {
            Tolerance::balanced(DType::F32).check(&got.unwrap().to_f64_vec().unwrap(), expected).unwrap();
        };
        let ys = y.output.to_f64_vec().unwrap();
        close(max_pool1d_backward(&y.output, x.shape(), &y.indices, &flat), &case.max_backward(&ys, &places));
        close(avg_pool1d(&x, &flat, averaging), &case.average(&xs));
        close(avg_pool1d_backward(&y.output, x.shape(), &flat, averaging), &case.average_backward(&ys));

        let (_, list) = windows([1, 17], Windows::Adaptive([1, 5]), averaging);
        let case = Case { shape: [3, 17].into(), size: 17, windows: list, outputs: vec![3, 5] };
        let y = adaptive_max_pool1d(&x, 5).unwrap();
        let (expected, places) = case.max(&xs);
        assert_eq!((y.output.to_f64_vec().unwrap(), y.indices.to_host().unwrap()), (expected, places.clone()));
        let ys = y.output.to_f64_vec().unwrap();
        close(adaptive_max_pool1d_backward(&y.output, x.shape(), &y.indices), &case.max_backward(&ys, &places));
        close(adaptive_avg_pool1d(&x, 5), &case.average(&xs));
        close(adaptive_avg_pool1d_backward(&y.output, x.shape()), &case.average_backward(&ys));
    }
}

#[test]
fn empty_batches_and_clear_errors() {
    for device in devices() {
        let make = |shape: &[usize]| Tensor::full(&device.queue, shape, DType::F32, 1.0).unwrap();
        let (x, window) = (make(&[0, 3, 4, 4]), Window::new([2, 2]));
        let y = max_pool2d(&x, &window).unwrap();
        assert_eq!(y.output.shape().to_vec(), [0, 3, 2, 2]);
        assert_eq!(max_pool2d_backward(&y.output, x.shape(), &y.indices, &window).unwrap().size(), 0);
        assert_eq!(avg_pool2d(&x, &window, Averaging::default()).unwrap().shape().to_vec(), [0, 3, 2, 2]);
        assert_eq!(adaptive_avg_pool2d(&x, [1, 1]).unwrap().shape().to_vec(), [0, 3, 1, 1]);

        let x = make(&[1, 4, 4]);
        let error = |window: &Window<2>| max_pool2d(&x, window).unwrap_err().to_string();
        assert_eq!(
            error(&Window::new([5, 2])),
            "max_pool2d: shape (1, 4, 4) does not fit: a window over 5 elements does not fit 4 padded by 0 on both sides"
        );
        assert_eq!(
            error(&Window { padding: [2, 0], ..Window::new([3, 3]) }),
            "max_pool2d: the padding 2 is more than half of the window, which reaches over 3 elements"
        );
        assert_eq!(error(&Window { stride: [1, 0], ..window }), "max_pool2d: the stride is 0; use at least 1");
        let dilated = Window { dilation: [2, 1], ..window };
        let averaged = avg_pool2d(&x, &dilated, Averaging::default()).unwrap_err().to_string();
        assert!(averaged.contains("averages have no dilation"), "{averaged}");
        let short = max_pool2d(&make(&[4]), &window).unwrap_err().to_string();
        assert!(short.contains("height and width"), "{short}");
        let y = max_pool2d(&x, &window).unwrap();
        let wrong = max_pool2d_backward(&x, x.shape(), &y.indices, &window).unwrap_err().to_string();
        assert!(wrong.contains("the output's gradient must have shape [1, 2, 2]"), "{wrong}");
        // Intel's runtime crashes now and then in a process that ends with work under way.
        device.queue.finish().unwrap();
    }
}

#[test]
fn pytorch_gives_the_same() {
    for device in devices() {
        let (queue, name) = (&device.queue, device.device_name.as_str());
        for case in golden::cases(include_str!("golden/pool.txt")) {
            let x = case.tensor(queue, "x");
            if case.name == "max_pool_special" {
                let y = max_pool2d(&x, &Window::new([2, 2])).unwrap();
                case.check(name, "y", &y.output);
                case.check(name, "indices", y.indices.tensor());
                continue;
            }
            let grad = case.tensor(queue, "grad");
            let square = |[kernel, stride, padding, dilation, ceil]: [usize; 5]| {
                let [kernel, stride, padding, dilation] = [kernel, stride, padding, dilation].map(|n| [n, n]);
                Windows::Fixed(Window { kernel, stride, padding, dilation, ceil_mode: ceil == 1 })
            };
            match case.name.as_str() {
                "max_pool" | "adaptive_max_pool" => {
                    let fixed = case.name == "max_pool";
                    let of =
                        if fixed { square(case.numbers("window")) } else { Windows::Adaptive(case.numbers("size")) };
                    let y = max(&x, of).unwrap();
                    case.check(name, "y", &y.output);
                    case.check(name, "indices", y.indices.tensor());
                    case.check(name, "d_x", &max_backward(&grad, x.shape(), &y, of).unwrap());
                }
                "avg_pool" | "adaptive_avg_pool" => {
                    let (of, averaging) = if case.name == "avg_pool" {
                        let [kernel, stride, padding, dilation, ceil, include, divisor] = case.numbers("window");
                        let averaging =
                            Averaging { count_include_pad: include == 1, divisor: (divisor > 0).then_some(divisor) };
                        (square([kernel, stride, padding, dilation, ceil]), averaging)
                    } else {
                        (Windows::Adaptive(case.numbers("size")), Averaging::default())
                    };
                    case.check(name, "y", &average(&x, of, averaging).unwrap());
                    case.check(name, "d_x", &average_backward(&grad, x.shape(), of, averaging).unwrap());
                }
                other => panic!("the golden file has a case {other}"),
            }
        }
    }
}

#[test]
fn channels_last_images_are_pooled_as_they_lie() {
    let (kernel, stride, padding, dilation) = ([3, 2], [2, 1], [1, 0], [1, 2]);
    let window = Window { kernel, stride, padding, dilation, ceil_mode: true };
    for device in devices() {
        let x = tensor(&device.queue, &random(2 * 5 * 7 * 6, 1, (-1.0, 1.0)), [2, 5, 7, 6], DType::F32).0;
        let lying =
            |t: &Tensor| t.permute(&[0, 2, 3, 1]).unwrap().contiguous().unwrap().permute(&[0, 3, 1, 2]).unwrap();
        let last = device.backend.name() == "cl";
        let values = |t: &Tensor| t.to_f64_vec().unwrap();
        let (dense, found) = (max_pool2d(&x, &window).unwrap(), max_pool2d(&lying(&x), &window).unwrap());
        assert_eq!(found.output.layout().is_channels_last(), last, "{}", device.device_name);
        assert_eq!(values(&found.output), values(&dense.output));
        assert_eq!(found.indices.to_host().unwrap(), dense.indices.to_host().unwrap());
        let expected = max_pool2d_backward(&dense.output, x.shape(), &dense.indices, &window).unwrap();
        for grad in [&dense.output, &found.output] {
            for indices in [&dense.indices, &found.indices] {
                let back = max_pool2d_backward(grad, x.shape(), indices, &window).unwrap();
                assert_eq!(values(&back), values(&expected), "{}", device.device_name);
            }
        }
        let plain = Window { dilation: [1, 1], ..window };
        let (dense, found) =
            (avg_pool2d(&x, &plain, Averaging::default()), avg_pool2d(&lying(&x), &plain, Averaging::default()));
        let (dense, found) = (dense.unwrap(), found.unwrap());
        assert_eq!(values(&found), values(&dense));
        let back = |grad| avg_pool2d_backward(grad, x.shape(), &plain, Averaging::default()).unwrap();
        assert_eq!(values(&back(&found)), values(&back(&dense)), "{}", device.device_name);
    }
}
