//! Native evaluation: register reuse, chunk edges, broadcasting, strides, dtypes, in-place.

use netcl_core::backend::cpu::simd::Level;
use netcl_core::dtype::{DType, Element};
use netcl_core::half::{bf16, f16};
use netcl_core::kernels::expr::cpu::{Nest, Program, Source, Target};
use netcl_core::kernels::expr::{BinaryOp, Expr, Graph, UnaryOp, Val, table};
use netcl_core::shape::{Layout, Shape, Slice};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

/// Arithmetic whose result is the same bits in any correct order of evaluation.
fn random_expression(seed: u64, size: usize) -> Expr {
    let mut rng = Random(seed);
    let g = Graph::new();
    let mut values: Vec<Val<'_>> = vec![g.input(0), g.input(1), g.input(2), g.scalar(0), g.scalar(1), g.constant(0.5)];
    for _ in 0..size {
        let mut pick = || values[rng.below(values.len())];
        let (a, b, c, d) = (pick(), pick(), pick(), pick());
        let value = match rng.below(9) {
            0 => a + b,
            1 => a - b,
            2 => a * b,
            3 => a.max(b),
            4 => a.lt(b).select(c, d),
            5 => a.ge(b) + c,
            6 => a.fma(b, c),
            7 => (a - b).abs(),
            _ => (a * 0.25).select(b, c),
        };
        values.push(value);
    }
    let last = values.len() - 1;
    g.finish_with(&[values[last], values[last - 3], values[last]], 3, 2)
}

#[test]
fn programs_equal_the_reference_bit_for_bit() {
    let scalars = [1.5, -0.75];
    for seed in 0..60 {
        let expr = random_expression(seed, 3 + seed as usize % 40);
        let program = Program::compile(&expr, DType::F64).unwrap();
        for n in [1, 7, 511, 512, 513, 1025] {
            let data: Vec<Vec<f64>> =
                (0..3).map(|k| (0..n).map(|i| ((i * 37 + k * 11) % 29) as f64 * 0.25 - 3.0).collect()).collect();
            let inputs: Vec<&[f64]> = data.iter().map(Vec::as_slice).collect();
            let (mut a, mut b, mut c) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
            program.run_slices(&inputs, &scalars, &mut [&mut a, &mut b, &mut c]).unwrap();
            for i in 0..n {
                let want = expr.eval(&[data[0][i], data[1][i], data[2][i]], &scalars);
                let got = [a[i], b[i], c[i]];
                for (g, w) in got.iter().zip(&want) {
                    assert!(g == w || (g.is_nan() && w.is_nan()), "{expr} at {i}: {got:?}, not {want:?}");
                }
            }
        }
    }
}

/// Layouts of one shape over storages of their own: dense, broadcast, transposed, flipped, with gaps.
fn views(shape: &[usize], variant: usize) -> Layout {
    let full = Shape::from(shape);
    let n = shape.len();
    match variant % 6 {
        0 => Layout::contiguous(full),
        1 => Layout::contiguous(Shape::from([1])).expand("test", &full).unwrap(),
        2 => {
            // Only the last axis: a bias.
            Layout::contiguous(Shape::from([shape[n - 1]])).expand("test", &full).unwrap()
        }
        3 => {
            // Everything but the last axis: a column.
            let mut dims = shape.to_vec();
            dims[n - 1] = 1;
            Layout::contiguous(Shape::from(dims)).expand("test", &full).unwrap()
        }
        4 => {
            // Axes stored in the opposite order.
            let reversed: Shape = shape.iter().rev().copied().collect();
            let order: Vec<isize> = (0..n as isize).rev().collect();
            Layout::contiguous(reversed).permute("test", &order).unwrap()
        }
        _ => {
            // Every other element, backwards, of a larger tensor.
            let mut dims = shape.to_vec();
            dims[n - 1] = 2 * shape[n - 1] + 1;
            let wide = Layout::contiguous(Shape::from(dims));
            let sliced = wide.slice(n - 1, Slice::new(Some(-1), None, -2)).unwrap();
            sliced.slice(n - 1, Slice::new(None, Some(shape[n - 1] as isize), 1)).unwrap()
        }
    }
}

fn broadcast_case<E: Element>(shape: &[usize], variants: [usize; 3]) {
    let g = Graph::new();
    let expr = g.finish(&[(g.input(0) - g.input(1)) * g.scalar(0) + 0.5]);
    let program = Program::compile(&expr, Program::compute_type([E::DTYPE])).unwrap();
    let layouts = variants.map(|v| views(shape, v));
    let storage = |l: &Layout| (0..l.end()).map(|i| E::from_f64((i % 13) as f64 - 6.0)).collect::<Vec<E>>();
    let (a, b) = (storage(&layouts[0]), storage(&layouts[1]));
    let untouched = E::from_f64(77.0);
    let mut out = vec![untouched; layouts[2].end()];
    program.run_layouts(&[(&a, &layouts[0]), (&b, &layouts[1])], &[0.25], &mut [(&mut out, &layouts[2])]).unwrap();
    let mut written = vec![false; out.len()];
    for ((i, j), o) in layouts[0].offsets().zip(layouts[1].offsets()).zip(layouts[2].offsets()) {
        // Quarters of small whole numbers: exact in every type.
        let want = (a[i].to_f64() - b[j].to_f64()) * 0.25 + 0.5;
        assert_eq!(out[o].to_f64(), want, "{:?} {shape:?} {variants:?} at {o}", E::DTYPE);
        written[o] = true;
    }
    for (value, _) in out.iter().zip(&written).filter(|(_, w)| !**w) {
        assert_eq!(*value, untouched);
    }
}

#[test]
fn broadcasting_and_strides_of_any_rank() {
    for shape in [
        &[1][..],
        &[5],
        &[700],
        &[3, 4],
        &[2, 130],
        &[3, 300],
        &[2, 2, 1030],
        &[40, 3],
        &[2, 3, 4],
        &[3, 1, 200],
        &[2, 3, 2, 5],
        &[2, 2, 2, 2, 2, 3],
    ] {
        for a in 0..6 {
            for b in 0..6 {
                for o in [0, 4, 5] {
                    broadcast_case::<f32>(shape, [a, b, o]);
                }
            }
            broadcast_case::<f64>(shape, [a, 5 - a, 5]);
            broadcast_case::<f16>(shape, [a, (a + 2) % 6, 0]);
            broadcast_case::<bf16>(shape, [a, (a + 3) % 6, 4]);
        }
    }
}

#[test]
fn empty_and_scalar_shapes() {
    let program = Program::compile(&table::op("add").unwrap().expr(), DType::F32).unwrap();
    program.run_slices::<f32>(&[&[], &[]], &[], &mut [&mut []]).unwrap();
    let scalar = Layout::contiguous(Shape::scalar());
    let mut out = [0.0f32];
    program.run_layouts(&[(&[1.0f32], &scalar), (&[2.0], &scalar)], &[], &mut [(&mut out, &scalar)]).unwrap();
    assert_eq!(out, [3.0]);
}

#[test]
fn masks_convert_and_casts_round() {
    let cast = Program::compile(&table::op("cast").unwrap().expr(), DType::F32).unwrap();
    let layout = Layout::contiguous(Shape::from([6]));
    let mask = [0u8, 1, 2, 255, 7, 0];
    let mut floats = [0.0f32; 6];
    cast.run_layouts(&[(&mask, &layout)], &[], &mut [(&mut floats, &layout)]).unwrap();
    assert_eq!(floats, [0.0, 1.0, 2.0, 255.0, 7.0, 0.0]);
    let wild = [-3.7f32, 300.0, f32::NAN, 2.9, f32::INFINITY, -0.0];
    let mut bytes = [9u8; 6];
    cast.run_layouts(&[(&wild, &layout)], &[], &mut [(&mut bytes, &layout)]).unwrap();
    assert_eq!(bytes, [0, 255, 0, 2, 255, 0]);
    // Ties to even, overflow to infinity, NaN kept, with the rounding of the `half` crate as the oracle.
    let floats = [1.0f32 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, f32::from_bits(0x7f80_0001), 1e-40, -1.0];
    let mut halves = [bf16::ZERO; 6];
    cast.run_layouts(&[(&floats, &layout)], &[], &mut [(&mut halves, &layout)]).unwrap();
    for (got, from) in halves.iter().zip(floats) {
        let want = bf16::from_f32(from);
        assert!(got == &want || (got.is_nan() && want.is_nan()), "{from}: {got} {want}");
    }
}

#[test]
fn ranges_may_be_split_anywhere_and_outputs_may_be_inputs() {
    let g = Graph::new();
    let (x, y) = (g.input(0), g.input(1));
    // x is read again after the output could have been written.
    let expr = g.finish(&[(x * y).tanh() + x.exp() * g.scalar(0), x - y]);
    let program = Program::compile(&expr, DType::F32).unwrap();
    let n = 3000;
    let a: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin()).collect();
    let b: Vec<f32> = (0..n).map(|i| (i as f32 * 0.11).cos()).collect();
    let (mut first, mut second) = (vec![0.0; n], vec![0.0; n]);
    program.run_slices(&[&a, &b], &[0.5], &mut [&mut first, &mut second]).unwrap();
    let (mut c, mut d) = (a.clone(), b.clone());
    for range in [0..1, 1..600, 600..1111, 1111..1111, 1111..3000] {
        let (c, d) = (c.as_mut_ptr(), d.as_mut_ptr());
        let source = |p: *mut f32| Source { data: p.cast(), dtype: DType::F32, strides: &[1] };
        let target = |p: *mut f32| Target { data: p.cast(), dtype: DType::F32, strides: &[1] };
        // SAFETY: both vectors hold n elements, and outputs are exactly the inputs' memory.
        unsafe {
            program.run_nest(Nest { shape: &[n] }, &[source(c), source(d)], &[target(c), target(d)], &[0.5], range);
        }
    }
    assert_eq!((c, d), (first, second));
}

/// Values that wait in registers, in memory, or are numbers; lengths around whole blocks of registers and chunks.
#[test]
fn instruction_sets_agree_on_exact_operations() {
    for seed in 0..60 {
        let expr = random_expression(seed, 2 + seed as usize % 40);
        for n in [1, 127, 128, 255, 256, 257, 384, 1000, 4099] {
            let data: Vec<f32> = (0..n).map(|i| (i % 31) as f32 * 0.125 - 2.0).collect();
            let run = |level| {
                let program = Program::compile(&expr, DType::F32).unwrap().with_level(level);
                let mut out = vec![vec![0.0f32; n]; 3];
                let mut slices: Vec<&mut [f32]> = out.iter_mut().map(Vec::as_mut_slice).collect();
                program.run_slices(&[&data, &data[..1], &data], &[0.5, 2.0], &mut slices).unwrap();
                out.concat().iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
            };
            assert_eq!(run(Level::Baseline), run(Level::Avx2), "{expr}, {n} elements");
        }
    }
}

/// Every operation that is exactly defined, on chunks and on numbers, with what is rare among them.
#[test]
fn instruction_sets_agree_on_special_values() {
    use UnaryOp::{Abs, Ceil, Floor, Neg, Round, Rsqrt, Sign, Sqrt};
    let rare =
        [0.0f32, -0.0, 1.0, -1.0, 0.5, 1.5, -2.5, 1e-40, -3e38, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 7.25];
    let a: Vec<f32> = (0..rare.len().pow(2)).map(|i| rare[i % rare.len()]).collect();
    let b: Vec<f32> = (0..rare.len().pow(2)).map(|i| rare[i / rare.len()]).collect();
    let g = Graph::new();
    let (x, y) = (g.input(0), g.input(1));
    let mut values: Vec<Val<'_>> = [Neg, Abs, Sign, Floor, Ceil, Round, Sqrt, Rsqrt].map(|op| x.unary(op)).to_vec();
    for op in BinaryOp::ALL.into_iter().filter(|op| *op != BinaryOp::Pow) {
        values.extend([x.binary(op, y), x.binary(op, g.scalar(0)), g.scalar(0).binary(op, y)]);
        values.push(x.binary(op, y).select(x, g.scalar(0)));
    }
    values.extend([x.fma(y, y), x.fma(g.scalar(0), y), x.select(y, g.scalar(0)), x.fma(y, g.constant(2.0))]);
    let expr = g.finish(&values);
    for scalar in [1.5, f64::NAN, -0.0] {
        let run = |level| {
            let program = Program::compile(&expr, DType::F32).unwrap().with_level(level);
            let mut out = vec![vec![0.0f32; a.len()]; values.len()];
            let mut slices: Vec<&mut [f32]> = out.iter_mut().map(Vec::as_mut_slice).collect();
            program.run_slices(&[&a, &b], &[scalar], &mut slices).unwrap();
            out
        };
        for (o, (low, high)) in run(Level::Baseline).iter().zip(run(Level::Avx2)).enumerate() {
            for (i, (low, high)) in low.iter().zip(high).enumerate() {
                let same = low.to_bits() == high.to_bits() || low.is_nan() && high.is_nan();
                assert!(same, "output {o} of {} and {}, {scalar}: {low} or {high}", a[i], b[i]);
            }
        }
    }
}

#[test]
fn updates_in_place_read_everything_before_it_is_gone() {
    let g = Graph::new();
    let (p, d, m) = (g.input(0), g.input(1), g.input(2));
    let mean = (d - m).fma(g.scalar(0), m);
    // The first output may be written at once; m is read by what makes it, and p again after its own output is known.
    let expr = g.finish(&[(mean / (mean * mean).sqrt()).fma(g.scalar(1), p), mean * p, mean]);
    let program = Program::compile(&expr, DType::F32).unwrap();
    for n in [1, 15, 16, 17, 255, 256, 257, 700, 5000] {
        let data: Vec<Vec<f32>> =
            (0..3).map(|k| (0..n).map(|i| ((i * 7 + k * 3) % 23) as f32 - 8.5).collect()).collect();
        let inputs: Vec<&[f32]> = data.iter().map(Vec::as_slice).collect();
        let mut want = vec![vec![0.0f32; n]; 3];
        let mut slices: Vec<&mut [f32]> = want.iter_mut().map(Vec::as_mut_slice).collect();
        program.run_slices(&inputs, &[0.1, -0.5], &mut slices).unwrap();
        let mut got = data.clone();
        let pointers: Vec<*mut u8> = got.iter_mut().map(|v| v.as_mut_ptr().cast()).collect();
        let sources: Vec<Source<'_>> =
            pointers.iter().map(|p| Source { data: *p, dtype: DType::F32, strides: &[1] }).collect();
        let targets: Vec<Target<'_>> =
            pointers.iter().map(|p| Target { data: *p, dtype: DType::F32, strides: &[1] }).collect();
        // SAFETY: all vectors hold n elements, and outputs are exactly the inputs' memory.
        unsafe { program.run_nest(Nest { shape: &[n] }, &sources, &targets, &[0.1, -0.5], 0..n) };
        assert_eq!(got, want, "{n}");
    }
}

#[test]
fn short_programs_for_common_operations() {
    for name in ["add", "mul", "relu", "leaky_relu", "exp", "gelu", "cast"] {
        let (instructions, _) = Program::compile(&table::op(name).unwrap().expr(), DType::F32).unwrap().cost();
        let most = if matches!(name, "leaky_relu" | "gelu") { 2 } else { 1 };
        assert!(instructions <= most, "{name}: {instructions}");
    }
    // Registers are reused: a long chain needs as many as its width, not its length.
    let g = Graph::new();
    let chain = (0..100).fold(g.input(0), |x, _| x.binary(BinaryOp::Max, g.scalar(0)).exp());
    assert!(Program::compile(&g.finish(&[chain]), DType::F32).unwrap().cost().1 <= 3);
}

#[test]
fn misuse_is_an_error() {
    let program = Program::compile(&table::op("add").unwrap().expr(), DType::F32).unwrap();
    let mut out = [0.0f32; 4];
    assert!(program.run_slices(&[&[0.0f32; 4]], &[], &mut [&mut out]).is_err());
    assert!(program.run_slices(&[&[0.0f32; 4], &[0.0; 3]], &[], &mut [&mut out]).is_err());
    let one = Layout::contiguous(Shape::from([1])).expand("test", &Shape::from([4])).unwrap();
    let dense = Layout::contiguous(Shape::from([4]));
    let x = [0.0f32; 4];
    let error = program.run_layouts(&[(&x, &dense), (&x, &dense)], &[], &mut [(&mut out, &one)]).unwrap_err();
    assert!(error.to_string().contains("share one place"), "{error}");
    assert!(Program::compile(&table::op("add").unwrap().expr(), DType::F16).is_err());
}
