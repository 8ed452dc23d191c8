//! Sums and maxima of stretches of rows: devices x dtypes x stretches, against plain f64.

use netcl_core::device::DeviceHandle;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::tensor::Tensor;
use netcl_ops::segment::{segment_argmax, segment_sum};

use crate::support::{Grid, Tolerance, devices, epsilon, random, supports, tensor};

/// Rows, width and offsets: empty stretches in the middle and at the ends, one row, rows before the first stretch.
const CASES: [(usize, usize, &[i64]); 5] =
    [(7, 3, &[0, 3, 3, 5]), (5, 1, &[0, 0, 5, 5]), (1, 40, &[0]), (70, 33, &[0, 1, 2, 40, 69]), (6, 2, &[2, 4])];

fn check((rows, width, offsets): (usize, usize, &[i64]), device: &DeviceHandle, dtype: DType) -> Result<(), String> {
    let values = random(rows * width, 1, (-1.0, 1.0));
    // A view whose rows lie innermost.
    let x = tensor(&device.queue, &values, [width, rows], dtype).0.permute(&[1, 0]).unwrap();
    let xs = x.to_f64_vec().unwrap();
    let at = IndexTensor::from_host(&device.queue, offsets, [offsets.len()]).unwrap();
    let ends = offsets.iter().skip(1).copied().chain([rows as i64]);
    let stretches: Vec<_> = offsets.iter().zip(ends).map(|(&start, end)| start as usize..end as usize).collect();
    let (mut sums, mut places) = (Vec::new(), Vec::new());
    for range in &stretches {
        for column in 0..width {
            let element = |row: usize| xs[row * width + column];
            sums.push(range.clone().map(element).sum::<f64>());
            let first = range.clone().rev().max_by(|&a, &b| element(a).total_cmp(&element(b)));
            places.push(first.unwrap_or(0) as i64);
        }
    }
    let tolerance = Tolerance { relative: epsilon(dtype), absolute: rows as f64 * epsilon(dtype.accumulator()) };
    let got = segment_sum(&x, &at).map_err(|e| e.to_string())?;
    tolerance.check(&got.to_f64_vec().unwrap(), &sums)?;
    let got = segment_argmax(&x, &at).map_err(|e| e.to_string())?.to_host().unwrap();
    if got == places { Ok(()) } else { Err(format!("{got:?} instead of {places:?}")) }
}

#[test]
fn every_stretch_on_every_device_and_dtype() {
    let mut grid = Grid::new("segment");
    for device in devices() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for case in CASES {
                grid.cell(&device, format!("{dtype} {case:?}"), || check(case, &device, dtype));
            }
        }
    }
    grid.finish(4 * CASES.len());
}

#[test]
fn nothing_nan_and_offsets_outside() {
    for device in devices() {
        let make = |values: &[f64], shape: &[usize]| tensor(&device.queue, values, shape, DType::F32).0;
        let offsets = |values: &[i64]| IndexTensor::from_host(&device.queue, values, [values.len()]).unwrap();
        let none = make(&[], &[0, 2]);
        assert_eq!(segment_sum(&none, &offsets(&[0, 0])).unwrap().to_f64_vec().unwrap(), [0.0; 4]);
        assert_eq!(segment_argmax(&none, &offsets(&[0])).unwrap().to_host().unwrap(), [0, 0]);
        assert_eq!(segment_sum(&none, &offsets(&[])).unwrap().size(), 0);
        let x = make(&[1.0, f64::NAN, 3.0, f64::NAN], &[4, 1]);
        assert_eq!(segment_argmax(&x, &offsets(&[0, 2])).unwrap().to_host().unwrap(), [1, 3]);
        // What a replay finds in the offsets cannot be checked before: nothing outside is read.
        let x = make(&[1.0, 2.0], &[2, 1]);
        assert_eq!(segment_sum(&x, &offsets(&[-5, 1, 9])).unwrap().to_f64_vec().unwrap(), [1.0, 2.0, 0.0]);
        let wrong = |r: netcl_core::Result<Tensor>| r.unwrap_err().to_string();
        assert!(
            wrong(segment_sum(&make(&[1.0], &[1]), &offsets(&[0]))).contains("segment_sum: shape (1,) does not fit")
        );
        device.queue.finish().unwrap();
    }
}
