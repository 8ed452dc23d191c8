//! Measures every operation of the table against its stated accuracy, on every instruction set and dtype, and keeps
//! `docs/src/accuracy.md` in step with the table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use netcl_core::backend::cpu::simd::{self, Level};
use netcl_core::dtype::{DType, Element};
use netcl_core::half::{bf16, f16};
use netcl_core::kernels::expr::cpu::Program;
use netcl_core::kernels::expr::table::{OpDef, ops};

/// A type's precision: mantissa bits with the hidden one, and the exponents of the smallest and largest normal number.
fn format(dtype: DType) -> (i32, i32, i32) {
    match dtype {
        DType::F64 => (53, -1022, 1023),
        DType::F32 => (24, -126, 127),
        DType::F16 => (11, -14, 15),
        _ => (8, -126, 127),
    }
}

/// The error of `got` in units in the last place of `want + rest`; infinite where one is NaN and the other is not.
fn ulps(dtype: DType, got: f64, want: f64, rest: f64) -> f64 {
    let (bits, lowest, highest) = format(dtype);
    if got.is_nan() || want.is_nan() {
        return if got.is_nan() && want.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if got == want && rest == 0.0 {
        return 0.0;
    }
    if want.is_infinite() {
        return f64::INFINITY;
    }
    // Past the largest number the next one would be 2^(highest + 1): an infinity stands for it.
    let ceiling = 2f64.powi(highest) * 2.0;
    let got = if got.is_infinite() { ceiling.copysign(got).clamp(-f64::MAX, f64::MAX) } else { got };
    let want_in_range = want.clamp(-ceiling, ceiling);
    let error = ((got - want_in_range) - if want == want_in_range { rest } else { 0.0 }).abs();
    if want.abs() < 2f64.powi(lowest) && error <= 128.0 * 2f64.powi(lowest - bits + 1) {
        return 0.0;
    }
    let exponent = (want_in_range.abs().log2().floor() as i32).clamp(lowest, highest);
    // In two steps: the unit of f64's small numbers is itself not a normal number.
    error / 2f64.powi(exponent) * 2f64.powi(bits - 1)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Zeros, subnormals, the neighbourhoods of kinks, thresholds and limits, huge numbers, infinities, NaN.
fn specials() -> Vec<f64> {
    let positive = [
        0.0,
        1e-45,
        3e-42,
        1.1e-38,
        1.2e-38,
        1e-30,
        1e-8,
        5.9e-8,
        1e-4,
        0.25,
        0.4999,
        0.5,
        0.75,
        0.9,
        0.99999994,
        1.0,
        1.0000001,
        1.5,
        2.0,
        2.5,
        3.0,
        4.5,
        6.0,
        9.0,
        10.0,
        14.4,
        14.6,
        20.0,
        40.0,
        44.0,
        87.3,
        88.7,
        88.8,
        103.9,
        105.0,
        127.0,
        150.0,
        1e4,
        99_999.0,
        100_001.0,
        8_388_609.0,
        16_777_217.0,
        1e10,
        1e19,
        1e30,
        3.4e38,
        f64::INFINITY,
    ];
    positive.iter().flat_map(|&x| [x, -x]).chain([f64::NAN]).collect()
}

/// The operands at which an operation is measured.
fn points<E: Element>(op: &OpDef) -> Vec<Vec<E>> {
    let mut rng = Random(op.name.bytes().map(u64::from).sum());
    let mut columns: Vec<Vec<E>> = vec![Vec::new(); op.arity()];
    for i in 0..3000 {
        for (column, &(low, high)) in columns.iter_mut().zip(op.domain) {
            let x = low + (high - low) * rng.next();
            // A third of the points spread over magnitudes rather than values.
            let x = if i % 3 == 0 { x * 10f64.powf(-9.0 * rng.next()) } else { x };
            column.push(E::from_f64(x));
        }
    }
    let special = specials();
    let combinations = special.len().pow(op.arity().min(2) as u32);
    for i in 0..combinations {
        for (k, column) in columns.iter_mut().enumerate() {
            column.push(E::from_f64(
                special[if k == 0 { i % special.len() } else { (i / special.len() + k - 1) % special.len() }],
            ));
        }
    }
    columns
}

fn program(op: &OpDef, compute: DType, level: Level) -> Program {
    Program::compile(&op.expr(), compute).unwrap().with_level(level)
}

/// The largest error against the same expression in f64.
fn measure<E: Element>(op: &OpDef, level: Level) -> f64 {
    let columns = points::<E>(op);
    let compute = Program::compute_type([E::DTYPE]);
    let n = columns[0].len();
    let mut out = vec![E::default(); n];
    let inputs: Vec<&[E]> = columns.iter().map(Vec::as_slice).collect();
    program(op, compute, level).run_slices(&inputs, &op.defaults(), &mut [&mut out]).unwrap();
    // The scalar the kernel sees is rounded; that is the caller's rounding, not the operation's.
    let scalars: Vec<f64> =
        op.defaults().iter().map(|&s| if compute == DType::F32 { f64::from(s as f32) } else { s }).collect();
    let expr = op.expr();
    let mut worst = (0.0, 0);
    for i in 0..n {
        let operands: Vec<f64> = columns.iter().map(|c| c[i].to_f64()).collect();
        let error = ulps(E::DTYPE, out[i].to_f64(), expr.eval(&operands, &scalars)[0], 0.0);
        if error > worst.0 {
            worst = (error, i);
        }
    }
    let at: Vec<f64> = columns.iter().map(|c| c[worst.1].to_f64()).collect();
    println!(
        "{:>12} {:>9} {level:?}: {:.3} ulp at {at:?} (gives {:?})",
        op.name,
        E::DTYPE.name(),
        worst.0,
        out[worst.1]
    );
    worst.0
}

/// The largest f64 error against the reference file, per operation in it.
fn measure_f64(level: Level) -> BTreeMap<&'static str, f64> {
    let mut errors = BTreeMap::new();
    for line in include_str!("data/expr_reference.txt").lines() {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        let op = ops().iter().find(|op| op.name == name).unwrap();
        let values: Vec<f64> = words.map(|w| f64::from_bits(u64::from_str_radix(w, 16).unwrap())).collect();
        let (operands, want) = values.split_at(op.arity());
        let inputs: Vec<[f64; 1]> = operands.iter().map(|&x| [x]).collect();
        let inputs: Vec<&[f64]> = inputs.iter().map(|x| x.as_slice()).collect();
        let mut out = [0.0];
        program(op, DType::F64, level).run_slices(&inputs, &op.defaults(), &mut [&mut out]).unwrap();
        let error = ulps(DType::F64, out[0], want[0], want[1]);
        let worst: &mut f64 = errors.entry(op.name).or_default();
        if error > *worst {
            *worst = error;
            println!("{name:>12} float64 {level:?}: {error:.3} ulp at {operands:?}");
        }
    }
    errors
}

fn levels() -> Vec<Level> {
    let mut levels = vec![Level::Baseline, simd::level()];
    levels.dedup();
    levels
}

fn check(dtype: DType, bound: impl Fn(&OpDef) -> f64, measure: impl Fn(&OpDef, Level) -> f64) {
    let mut failures = Vec::new();
    for op in ops() {
        for level in levels() {
            let error = measure(op, level);
            if error > bound(op) {
                failures.push(format!("{} {dtype} {level:?}: {error:.3} ulp, stated {}", op.name, bound(op)));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn f32_is_as_accurate_as_stated() {
    check(DType::F32, |op| op.ulp.native_f32, measure::<f32>);
}

#[test]
fn f16_is_within_one_ulp() {
    check(DType::F16, |_| 1.0, measure::<f16>);
}

#[test]
fn bf16_is_within_one_ulp() {
    check(DType::BF16, |_| 1.0, measure::<bf16>);
}

/// Against the same functions in f64: exact operations must agree to the bit, special values in kind.
#[test]
fn f64_agrees_with_the_definitions_on_special_values() {
    check(DType::F64, |op| op.ulp.native_f64, measure::<f64>);
}

#[test]
fn f64_is_as_accurate_as_stated() {
    let mut failures = Vec::new();
    for level in levels() {
        let errors = measure_f64(level);
        assert_eq!(errors.len(), 40);
        for op in ops() {
            if let Some(&error) = errors.get(op.name).filter(|&&e| e > op.ulp.native_f64) {
                failures.push(format!("{} {level:?}: {error:.3} ulp, stated {}", op.name, op.ulp.native_f64));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

// ---- the page of the book -----------------------------------------------------------------------------------------

fn page() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/accuracy.md")
}

/// The part of an operation's row that the table determines.
fn stated(op: &OpDef) -> String {
    let u = op.ulp;
    let (a, b, c, d) = (u.native_f32, u.native_f64, u.device_f32, u.device_f64);
    let doc = op.doc.replace('|', "\\|");
    format!("| `{}` | {doc} | {a} | {b} | {c} | {d} |", op.name)
}

#[test]
fn the_page_states_what_the_table_states() {
    let text = std::fs::read_to_string(page()).unwrap();
    for op in ops() {
        assert!(text.contains(&stated(op)), "{} is out of date in docs/src/accuracy.md: {}", op.name, REGENERATE);
    }
    assert_eq!(text.matches("\n| `").count(), ops().len(), "docs/src/accuracy.md has other rows; {REGENERATE}");
}

const REGENERATE: &str = "run `cargo test -p netcl-core --test all -- --ignored regenerate`";

#[test]
#[ignore = "writes docs/src/accuracy.md"]
fn regenerate() {
    let level = simd::level();
    let f64_errors = measure_f64(level);
    let mut text = include_str!("data/accuracy_intro.md").to_owned();
    for op in ops() {
        let f64_error = f64_errors.get(op.name).copied().unwrap_or_else(|| measure::<f64>(op, level));
        let _ = writeln!(text, "{} {:.2} | {f64_error:.2} |", stated(op), measure::<f32>(op, level));
    }
    std::fs::create_dir_all(page().parent().unwrap()).unwrap();
    std::fs::write(page(), text).unwrap();
}
