//! Vectorised elementwise kernels on whatever OpenCL devices there are: counts around the edges of their tiles and vectors.

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::{Grid, Source};
use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::expr::opencl::{
    Addressing, Arg as Place, ElementwiseSpec, IndexWidth, InputKind, InputSpec, elementwise_source,
};
use netcl_core::kernels::launch::{Access, Arg, Cost, Launch, Scalar, Work, submit};
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;

use crate::opencl_support;

#[test]
fn every_element_once() {
    check(Addressing::Tiles { width: 4, vectors: 4 }, 0);
    check(Addressing::Dense { width: 16 }, 0);
    // Vectors that do not lie at multiples of their width.
    check(Addressing::Dense { width: 16 }, 3);
}

/// Rounding in an expression gives what storing and loading 16 bits gives: epilogues depend on it.
#[test]
fn rounding_is_a_cast_there_and_back() {
    // Around every float16, ties among them, and numbers of any size.
    let halves = (0..1u32 << 16).map(|bits| half::f16::from_bits(bits as u16).to_f32().to_bits());
    let around = halves.flat_map(|bits| [0u32, 0x1000, 0xfff, 0x1001].map(|more| bits.wrapping_add(more)));
    let anywhere = (0..1u32 << 14).map(|i| i.wrapping_mul(2_654_435_761) & !0xfff);
    let anywhere = anywhere.flat_map(|bits| [0, 1, 0x7fff, 0x8000, 0x8001].map(|more| bits.wrapping_add(more)));
    let numbers: Vec<f32> = around.chain(anywhere).map(f32::from_bits).collect();
    let devices = opencl_support::devices().into_iter().map(|device| manager().handle(&device).unwrap().queue);
    for queue in devices.chain([manager().cpu().queue]) {
        let x = Tensor::from_host(&queue, &numbers, [numbers.len()]).unwrap();
        let g = Graph::new();
        let op = Elementwise::new("round", g.finish(&[g.input(0).to_f16(), g.input(0).to_bf16()]));
        let out = [(); 2].map(|()| Tensor::uninit(&queue, x.shape().clone(), DType::F32).unwrap());
        op.run(&[&x], &[], &[&out[0], &out[1]]).unwrap();
        for (out, dtype) in out.iter().zip([DType::F16, DType::BF16]) {
            let cast = x.cast(dtype).unwrap().cast(DType::F32).unwrap().to_host::<f32>().unwrap();
            for ((x, cast), rounded) in numbers.iter().zip(cast).zip(out.to_host::<f32>().unwrap()) {
                let same = cast.to_bits() == rounded.to_bits() || cast.is_nan() && rounded.is_nan();
                assert!(same, "{}: {x:e} is {rounded:e}, but cast to {dtype} {cast:e}", queue.device_name());
            }
        }
    }
}

/// Compares every element of outputs that begin at `start`, and what lies around them.
fn check(addressing: Addressing, start: usize) {
    let g = Graph::new();
    let (x, y, z) = (g.input(0), g.input(1), g.input(2));
    let expr = g.finish(&[x * y + g.scalar(0), (x - z).relu()]);
    let single = InputSpec { dtype: DType::F32, kind: InputKind::Single };
    let made = elementwise_source(&ElementwiseSpec {
        label: "tiles",
        expr: &expr,
        inputs: vec![DType::F32.into(), DType::F16.into(), single],
        outputs: vec![DType::F32, DType::BF16],
        addressing,
        index: IndexWidth::Bits32,
    })
    .unwrap();
    let (local, most) = (8, 1010);
    assert_eq!((made.work_items(16), made.work_items(17)), (1, 2));
    for device in opencl_support::devices() {
        let queue = manager().handle(&device).unwrap().queue;
        let Queue::OpenCl(stream) = &queue else { continue };
        let kernel = stream.kernel(&made.name, || (Source::new(made.source(), ""), made.name.as_str())).unwrap();
        let values = |seed: usize| (0..most).map(|i| ((i * 7 + seed) % 33) as f32 / 8.0 - 2.0).collect::<Vec<f32>>();
        let x = Tensor::from_host(&queue, &values(1), [most]).unwrap();
        let y = Tensor::from_host(&queue, &values(2), [most]).unwrap().cast(DType::F16).unwrap();
        let z = Tensor::from_host(&queue, &[0.5f32], [1]).unwrap();
        for count in [1, 3, 4, 5, 16, 31, 127, 128, 129, 512, 1000] {
            let outputs = [
                Tensor::full(&queue, [most], DType::F32, 99.0).unwrap(),
                Tensor::full(&queue, [most], DType::BF16, 99.0).unwrap(),
            ];
            let inputs = [&x, &y, &z];
            let buffer = |t: &Tensor, access| Arg::Buffer(t.storage().clone(), access);
            let args = made.args.iter().map(|place| match *place {
                Place::Output(i) => buffer(&outputs[i], Access::Write),
                Place::Input(i) => buffer(inputs[i], Access::Read),
                Place::Scalar(_) => Arg::Scalar(Scalar::F32(0.25)),
                Place::Count => Arg::Scalar(Scalar::U32(count as u32)),
                Place::OutputOffset(_) => Arg::Scalar(Scalar::U64(start as u64)),
                _ => Arg::Scalar(Scalar::U64(0)),
            });
            let grid = Grid::new([made.work_items(count).next_multiple_of(local)]).local([local]);
            let launch = Launch {
                name: "tiles".into(),
                queue: queue.clone(),
                work: Work::OpenCl(kernel.clone(), grid),
                args: args.collect(),
                cost: Cost::default(),
            };
            submit(launch).unwrap();
            let (xs, ys) = (x.to_f64_vec().unwrap(), y.to_f64_vec().unwrap());
            for (o, output) in outputs.iter().enumerate() {
                for (i, got) in output.to_f64_vec().unwrap().into_iter().enumerate() {
                    let expected = match i.checked_sub(start).filter(|i| *i < count) {
                        Some(i) => expr.eval(&[xs[i], ys[i], 0.5], &[0.25])[o],
                        None => 99.0,
                    };
                    // Eighths of small numbers are exact in every type here, and their products in f32.
                    assert_eq!(
                        got,
                        expected,
                        "{addressing:?}: output {o}, element {i} of {count} on {}",
                        device.name()
                    );
                }
            }
        }
    }
}

/// Operands that lie densely along the last axis alone, or have one element along it: short and long rows, axes that do not collapse,
/// an output that is a view.
#[test]
fn rows_of_any_length() {
    let g = Graph::new();
    let (x, y, z) = (g.input(0), g.input(1), g.input(2));
    let op = Elementwise::new("rows", g.finish(&[(x * y + z).tanh(), x - z]));
    let values =
        |n: usize, seed: usize| (0..n).map(|i| ((i * 7 + seed) % 61) as f32 / 32.0 - 1.0).collect::<Vec<f32>>();
    for [outer, middle, n] in [[1, 3, 8], [2, 5, 9], [1, 300, 17], [3, 2, 33], [1, 2, 40_001], [2, 700, 64], [4, 3, 7]]
    {
        let run = |queue: &Queue| {
            let make = |shape: [usize; 3], seed| {
                let n = shape.iter().product();
                Tensor::from_host(queue, &values(n, seed), shape).unwrap()
            };
            let shape = [outer, middle, n];
            // Every other line of a larger tensor, one value for each line, one line for all.
            let x = make([outer, 2 * middle, n], 1).slice(1, Slice::new(None, None, 2)).unwrap();
            let y = make([outer, middle, 1], 2).cast(DType::F16).unwrap().expand(shape).unwrap();
            let z = make([1, 1, n], 3).expand(shape).unwrap();
            let wide = Tensor::full(queue, [outer, middle, n + 5], DType::F32, 99.0).unwrap();
            let inside = wide.slice(2, Slice::new(Some(3), Some(3 + n as isize), 1)).unwrap();
            let dense = Tensor::full(queue, shape, DType::BF16, 99.0).unwrap();
            op.run(&[&x, &y, &z], &[], &[&inside, &dense]).unwrap();
            [wide.to_f64_vec().unwrap(), dense.to_f64_vec().unwrap()]
        };
        let expected = run(&manager().cpu().queue);
        for device in opencl_support::devices() {
            let got = run(&manager().handle(&device).unwrap().queue);
            for (got, expected) in got.iter().zip(&expected) {
                for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
                    assert!((got - expected).abs() < 1e-6, "{device:?} {n}: element {i} is {got}, expected {expected}");
                }
            }
        }
    }
}
