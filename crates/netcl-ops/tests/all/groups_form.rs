//! Kernels with large work-groups on every OpenCL device: whole vectors and tails, shifted and strided views, all dtypes, rows and
//! columns, one part and several. On CPU devices groups are that large by force alone.

use std::rc::Rc;

use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::group_limit::force_full_groups;
use netcl_core::kernels::launch::{Counter, Recorder, with_sink};
use netcl_core::shape::Slice;
use netcl_core::tensor::{Tensor, reshape};
use netcl_ops as ops;
use netcl_ops::reduce::{Variant, force_variant};

use crate::support::{Grid, Tolerance, epsilon, opencl, random, supports, tensor};

/// Rows of `n` elements, `pitch` apart, from element `first` on: a view, and the values it shows.
fn rows(device: &DeviceHandle, rows: usize, n: usize, pitch: usize, first: usize, dtype: DType) -> (Tensor, Vec<f64>) {
    let (t, _) = tensor(&device.queue, &random(rows * pitch, 17, (-1.0, 1.0)), [rows, pitch], dtype);
    let view = t.slice(1, Slice::new(Some(first as isize), Some((first + n) as isize), 1)).unwrap();
    let values = view.to_f64_vec().unwrap();
    (view, values)
}

/// What a sum of these terms may be off by.
fn of_sum(dtype: DType, terms: f64) -> Tolerance {
    let compute = if dtype == DType::F64 { 8.0 * f64::EPSILON } else { f64::from(f32::EPSILON) };
    let own = if matches!(dtype, DType::F16 | DType::BF16) { epsilon(dtype) } else { 0.0 };
    Tolerance { relative: own + 8.0 * compute, absolute: 4.0 * compute * terms }
}

#[test]
fn sums_of_rows_and_columns() {
    let mut grid = Grid::new("reductions in groups");
    // Rows, elements, distance of the rows, first element: aligned, with a tail, with gaps, shifted; short and long.
    let cases = [(5, 1024, 1024, 0), (3, 4100, 4100, 0), (1, 70_003, 70_003, 0), (37, 12, 24, 8), (6, 2048, 2056, 3)];
    for device in opencl() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (case, &(count, n, pitch, first)) in cases.iter().enumerate() {
                // A program costs PoCL up to a second: 32-bit floats, once with a tail, once in parts, once shifted.
                let portable = device.platform_name.contains("Portable");
                let left_out = portable && (dtype != DType::F32 || matches!(case, 0 | 3));
                if left_out || (dtype != DType::F32 && !matches!(case, 1 | 2)) {
                    continue;
                }
                let (x, values) = rows(&device, count, n, pitch, first, dtype);
                for variant in [Variant::Parallel, Variant::Workgroup] {
                    let what = format!("{dtype} {variant:?} {count} x {n}, every {pitch} from {first}");
                    grid.cell(&device, what, || {
                        let (along, across) = force_full_groups(|| {
                            force_variant(variant, || (ops::sum(&x, 1, false), ops::sum(&x, 0, false)))
                        });
                        let expected: Vec<f64> = values.chunks(n).map(|row| row.iter().sum()).collect();
                        of_sum(dtype, n as f64).check(&along.unwrap().to_f64_vec().unwrap(), &expected)?;
                        let expected: Vec<f64> = (0..n).map(|c| values.iter().skip(c).step_by(n).sum()).collect();
                        of_sum(dtype, count as f64).check(&across.unwrap().to_f64_vec().unwrap(), &expected)
                    });
                }
            }
        }
        let (x, values) = tensor(&device.queue, &random(3 * 5 * 4096, 3, (-1.0, 1.0)), [3, 5, 4096], DType::F32);
        grid.cell(&device, "outer and inner axes, prologue and epilogue", || {
            let sum =
                force_full_groups(|| force_variant(Variant::Workgroup, || ops::norm(&x, 2.0, &[0isize, 2][..], false)))
                    .unwrap();
            let square = |c: usize| {
                let of_channel = (0..3).flat_map(|n| &values[(n * 5 + c) * 4096..][..4096]);
                of_channel.map(|v| v * v).sum::<f64>().sqrt()
            };
            of_sum(DType::F32, 40.0).check(&sum.to_f64_vec().unwrap(), &(0..5).map(square).collect::<Vec<_>>())
        });
        grid.cell(&device, "columns in parts", || {
            let sum = force_full_groups(|| {
                force_variant(Variant::Workgroup, || ops::mean(&reshape(&x, [3840, 16]).unwrap(), 0, true))
            })
            .unwrap();
            let mean = |c: usize| values.iter().skip(c).step_by(16).sum::<f64>() / 3840.0;
            of_sum(DType::F32, 1.0).check(&sum.to_f64_vec().unwrap(), &(0..16).map(mean).collect::<Vec<_>>())
        });
        grid.cell(&device, "a NaN is found, an infinity stays one", || {
            let mut values = vec![1.0; 100_000];
            (values[99_999], values[77]) = (f64::NAN, f64::INFINITY);
            let (x, _) = tensor(&device.queue, &values, [100_000], DType::F32);
            let head = x.slice(0, Slice::new(None, Some(99_996), 1)).unwrap();
            let (nan, inf, sum) = force_full_groups(|| {
                let (nan, inf) = (ops::max(&x, (), false).unwrap(), ops::max(&head, (), false).unwrap());
                (nan, inf, ops::sum(&head, (), false).unwrap())
            });
            let found = [nan, inf, sum].map(|t| t.item().unwrap());
            Tolerance::strict(DType::F32).check(&found, &[f64::NAN, f64::INFINITY, f64::INFINITY])
        });
    }
    grid.finish(0);
}

/// One launch, the same bits every time, and counters that are ready for the next run, also of a recorded program.
#[test]
fn the_last_group_finishes_the_sum() {
    for device in opencl() {
        let (x, values) = tensor(&device.queue, &random(1 << 18, 5, (-1.0, 1.0)), [1 << 18], DType::F32);
        let counter = Rc::new(Counter::default());
        let run = || force_full_groups(|| force_variant(Variant::Workgroup, || ops::sum(&x, (), false))).unwrap();
        let first = with_sink(counter.clone(), run);
        assert_eq!(counter.names(), [("sum_workgroup".to_owned(), 1)]);
        let first = first.item().unwrap();
        assert!((first - values.iter().sum::<f64>()).abs() < 1e-2);
        for _ in 0..20 {
            assert_eq!(run().item().unwrap().to_bits(), first.to_bits(), "{device:?}");
        }
        let recorder = Rc::new(Recorder::default());
        let total = with_sink(recorder.clone(), run);
        assert_eq!(recorder.len(), 1);
        for _ in 0..3 {
            recorder.replay().unwrap();
            assert_eq!(total.item().unwrap().to_bits(), first.to_bits(), "{device:?}");
            total.fill(0.0).unwrap();
        }
    }
}

/// Copies move bits: every size of element, every alignment, rows with gaps, exchanged axes, and casts.
#[test]
fn copies_of_every_layout() {
    let mut grid = Grid::new("copies in groups");
    for device in opencl() {
        let host: Vec<f64> = (0..6 * 70 * 96).map(|i| f64::from(i % 251)).collect();
        let portable = device.platform_name.contains("Portable");
        for dtype in [DType::F32, DType::F16, DType::U8, DType::I64] {
            // One program for all that has 4 bytes: PoCL takes long for one.
            if portable && dtype != DType::F32 {
                continue;
            }
            let (x, _) = tensor(&device.queue, &host, [6, 70, 96], dtype);
            let part =
                |axis: isize, from: isize, to: isize| x.slice(axis, Slice::new(Some(from), Some(to), 1)).unwrap();
            let flat = reshape(&x, [host.len()]).unwrap();
            let shifted = |from: isize, to: isize| flat.slice(0, Slice::new(Some(from), Some(to), 1)).unwrap();
            let sources = [
                ("dense", x.clone()),
                ("from the third on, with a tail", shifted(3, 1000)),
                ("shorter than a vector", shifted(17, 18)),
                ("rows with gaps", part(2, 16, 80)),
                ("rows at odd places", part(2, 3, 90)),
                ("last axes exchanged", x.permute(&[0, 2, 1]).unwrap()),
                ("odd axes exchanged", part(2, 1, 78).permute(&[0, 2, 1]).unwrap()),
                ("first axis last", x.permute(&[1, 2, 0]).unwrap()),
                ("all axes turned", reshape(&flat, [24, 70, 24]).unwrap().permute(&[2, 1, 0]).unwrap()),
                ("repeated", part(0, 0, 1).expand([5, 70, 96]).unwrap()),
                ("backwards", x.slice(2, Slice::new(None, None, -1)).unwrap()),
            ];
            for (what, source) in &sources {
                grid.cell(&device, format!("{dtype} {what}"), || {
                    let copy = Tensor::uninit(&device.queue, source.shape().clone(), dtype).unwrap();
                    force_full_groups(|| copy.assign(source)).unwrap();
                    Tolerance { relative: 0.0, absolute: 0.0 }
                        .check(&copy.to_f64_vec().unwrap(), &source.to_f64_vec().unwrap())
                });
            }
            grid.cell(&device, format!("{dtype} into the middle of others"), || {
                let target = force_full_groups(|| Tensor::full(&device.queue, [1003], dtype, 7.0)).unwrap();
                let inside = target.slice(0, Slice::new(Some(5), Some(902), 1)).unwrap();
                force_full_groups(|| inside.assign(&shifted(0, 897))).unwrap();
                let mut expected = vec![7.0; 1003];
                expected[5..902].copy_from_slice(&host[..897]);
                Tolerance { relative: 0.0, absolute: 0.0 }.check(&target.to_f64_vec().unwrap(), &expected)
            });
        }
        for (from, to) in
            [(DType::F32, DType::F16), (DType::F32, DType::BF16), (DType::F16, DType::F32), (DType::F32, DType::U8)]
        {
            if portable && to != DType::F16 {
                continue;
            }
            grid.cell(&device, format!("{from} as {to}"), || {
                let values = random(1005, 8, (-3.0, 300.0));
                let (x, _) = tensor(&device.queue, &values, [1005], from);
                let x = x.slice(0, Slice::new(Some(1), None, 1)).unwrap();
                let native = tensor(&manager().cpu().queue, &x.to_f64_vec().unwrap(), [1004], from).0;
                let (got, expected) = (x.cast(to).unwrap(), native.cast(to).unwrap());
                Tolerance { relative: 0.0, absolute: 0.0 }
                    .check(&got.to_f64_vec().unwrap(), &expected.to_f64_vec().unwrap())
            });
        }
    }
    grid.finish(0);
}

/// Rows of tables in whole vectors; an index outside gives NaN in every element while nothing checks it.
#[test]
fn rows_of_tables() {
    for device in opencl() {
        for dtype in [DType::F32, DType::F16] {
            let (table, values) = tensor(&device.queue, &random(9 * 24, 4, (-1.0, 1.0)), [9, 24], dtype);
            let index = IndexTensor::from_host(&device.queue, &[8i64, 0, 3, 3], [2, 2]).unwrap();
            let got = force_full_groups(|| ops::embedding(&table, &index)).unwrap().to_f64_vec().unwrap();
            let expected: Vec<f64> =
                [8, 0, 3, 3].iter().flat_map(|&r: &usize| values[24 * r..][..24].to_vec()).collect();
            assert_eq!(got, expected, "{device:?} {dtype}");
            let (gradient, of) = tensor(&device.queue, &random(4 * 24, 5, (-1.0, 1.0)), [2, 2, 24], dtype);
            let got = force_full_groups(|| ops::embedding_backward(&gradient, &index, 9, None))
                .unwrap()
                .to_f64_vec()
                .unwrap();
            let mut expected = vec![0.0; 9 * 24];
            for (at, value) in of.iter().enumerate() {
                expected[[8, 0, 3, 3][at / 24] * 24 + at % 24] += value;
            }
            Tolerance::strict(dtype).check(&got, &expected).unwrap();
            let outside = IndexTensor::from_host(&device.queue, &[1i64, 9], [2]).unwrap();
            let recorder = Rc::new(Recorder::default());
            let read = with_sink(recorder.clone(), || force_full_groups(|| ops::embedding(&table, &outside))).unwrap();
            recorder.replay().unwrap();
            let read = read.to_f64_vec().unwrap();
            assert_eq!(read[..24], values[24..48], "{device:?} {dtype}");
            assert!(read[24..].iter().all(|v| v.is_nan()), "{device:?} {dtype}");
        }
    }
}
