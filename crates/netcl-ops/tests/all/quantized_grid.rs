//! Products with weights of 8 and 4 bits: devices x dtypes x packings x lengths, against the packed words read in plain f64.

use netcl_core::device::DeviceHandle;
use netcl_core::dtype::DType;
use netcl_core::tensor::Tensor;
use netcl_ops::quantized::{Packing, QuantizedWeight, quantized_linear};

use crate::support::{Grid, Tolerance, devices, epsilon, every, random, supports, tensor};

const PACKINGS: [(usize, usize); 4] = [(8, 64), (4, 32), (4, 64), (4, 128)];
/// Features of the result and of x: less than a word, around words and groups, more words than a work-group has work-items.
const LENGTHS: [(usize, usize); 8] = [(1, 1), (3, 7), (5, 8), (4, 33), (9, 64), (2, 130), (7, 260), (6, 1100)];
/// Each number of rows that the kernels tell apart, and those beside it.
const ROWS: [usize; 9] = [1, 2, 3, 4, 5, 8, 9, 16, 17];

/// A weight, and what its words and scales say in f64.
fn quantized(
    device: &DeviceHandle,
    (n, k): (usize, usize),
    (bits, group): (usize, usize),
    dtype: DType,
) -> (QuantizedWeight, Vec<f64>) {
    let (weight, _) = tensor(&device.queue, &random(n * k, 7, (-1.0, 1.0)), [n, k], dtype);
    let weight = QuantizedWeight::quantize(&weight, Packing::new(bits, group).unwrap()).unwrap();
    let (words, scales) = (weight.packed().to_host::<i32>().unwrap(), weight.scale().to_f64_vec().unwrap());
    let (per_row, groups) = (words.len() / n, scales.len() / n);
    let value = |at: usize| {
        let (row, i) = (at / k, at % k);
        let word = words[row * per_row + i * bits / 32] as u32 >> (i * bits % 32) & ((1 << bits) - 1);
        let group = if bits == 8 { 0 } else { i / group };
        (f64::from(word) - f64::from(1 << (bits - 1))) * scales[row * groups + group]
    };
    (weight, (0..n * k).map(value).collect())
}

fn check(
    device: &DeviceHandle,
    dtype: DType,
    packing: (usize, usize),
    (n, k): (usize, usize),
    m: usize,
) -> Result<(), String> {
    let (weight, values) = quantized(device, (n, k), packing, dtype);
    let (x, xs) = tensor(&device.queue, &random(m * k, 3, (-1.0, 1.0)), [m, k], dtype);
    let (bias, biases) = tensor(&device.queue, &random(n, 5, (-1.0, 1.0)), [n], dtype);
    let bias = (m % 2 == 1).then_some(&bias);
    let sum = |at: usize| {
        let (row, column) = (at / n, at % n);
        let products = (0..k).map(|i| xs[row * k + i] * values[column * k + i]);
        products.sum::<f64>() + bias.map_or(0.0, |_| biases[column])
    };
    let got = quantized_linear(&x, &weight, bias).map_err(|e| e.to_string())?;
    // Many rows are multiplied by weights that are rounded to the dtype. The reference of float64 rounds as much itself.
    let absolute = if dtype == DType::F64 { 8.0 } else { 2.0 }
        * (k as f64).sqrt()
        * epsilon(if m > 16 { dtype } else { dtype.accumulator() });
    let tolerance = Tolerance { relative: epsilon(dtype), absolute };
    tolerance.check(&got.to_f64_vec().unwrap(), &(0..m * n).map(sum).collect::<Vec<_>>())
}

#[test]
fn every_packing_on_every_device_and_dtype() {
    let mut grid = Grid::new("quantized");
    for device in devices() {
        let mut cells = 0;
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (i, packing) in PACKINGS.into_iter().enumerate() {
                for (j, lengths) in LENGTHS.into_iter().enumerate() {
                    for l in 0..3 {
                        let rows = ROWS[(i + j + 3 * l) % ROWS.len()];
                        cells += 1;
                        if cells % every(&device, 17, 5) == 0 {
                            let what = format!("{dtype} {packing:?} {lengths:?} {rows} rows");
                            grid.cell(&device, what, || check(&device, dtype, packing, lengths, rows));
                        }
                    }
                }
            }
        }
    }
    grid.finish(4 * PACKINGS.len() * LENGTHS.len() * 3);
}

#[test]
fn dequantized_weights_are_within_half_a_step() {
    for device in devices() {
        for (bits, group) in PACKINGS {
            let (n, k) = (3, 150);
            let (weight, expected) = quantized(&device, (n, k), (bits, group), DType::F32);
            let got = weight.dequantize().unwrap().to_f64_vec().unwrap();
            Tolerance { relative: epsilon(DType::F32), absolute: 0.0 }.check(&got, &expected).unwrap();
            let (_, values) = tensor(&device.queue, &random(n * k, 7, (-1.0, 1.0)), [n, k], DType::F32);
            let (step, limit) = (if bits == 8 { k } else { group }, if bits == 8 { 127.0 } else { 7.0 });
            for (row, got) in values.chunks(k).zip(got.chunks(k)) {
                for (part, got) in row.chunks(step).zip(got.chunks(step)) {
                    let most = part.iter().fold(0.0f64, |most, w| most.max(w.abs()));
                    let apart = part.iter().zip(got).fold(0.0f64, |apart, (a, b)| apart.max((a - b).abs()));
                    assert!(apart <= 0.5001 * most / limit, "{bits} bits: {apart} of {most}");
                }
            }
        }
    }
}

#[test]
fn views_axes_and_nothing() {
    for device in devices() {
        let make = |shape: &[usize]| {
            tensor(&device.queue, &random(shape.iter().product(), 1, (-1.0, 1.0)), shape, DType::F32).0
        };
        let weight = |n, k| QuantizedWeight::quantize(&make(&[n, k]), Packing::new(4, 32).unwrap()).unwrap();
        let w = weight(5, 40);
        let x = make(&[40, 3, 2]).permute(&[2, 1, 0]).unwrap();
        let y = quantized_linear(&x, &w, None).unwrap();
        assert_eq!(y.shape()[..], [2, 3, 5]);
        let expected = netcl_ops::linear(&x, &w.dequantize().unwrap(), None).unwrap().to_f64_vec().unwrap();
        Tolerance::balanced(DType::F32).check(&y.to_f64_vec().unwrap(), &expected).unwrap();
        // The same bits each time, and for a row whatever is beside it in its tile.
        let again = quantized_linear(&x.duplicate().unwrap(), &w, None).unwrap();
        assert_eq!(y.to_host::<f32>().unwrap(), again.to_host::<f32>().unwrap());
        assert_eq!(quantized_linear(&make(&[40]), &w, None).unwrap().shape()[..], [5]);
        assert_eq!(quantized_linear(&make(&[0, 40]), &w, None).unwrap().shape()[..], [0, 5]);
        assert_eq!(quantized_linear(&make(&[2, 40]), &weight(0, 40), None).unwrap().shape()[..], [2, 0]);
        let bias = make(&[5]);
        let none = quantized_linear(&make(&[2, 0]), &weight(5, 0), Some(&bias)).unwrap().to_host::<f32>().unwrap();
        assert_eq!(none, bias.to_host::<f32>().unwrap().repeat(2));
    }
}

#[test]
fn what_does_not_fit_is_said() {
    let queue = netcl_core::device::manager().cpu().queue;
    let make = |values: &[f64], shape: &[usize], dtype| tensor(&queue, values, shape, dtype).0;
    fn text<T>(result: netcl_core::Result<T>) -> String {
        result.err().unwrap().to_string()
    }
    let packing = Packing::new(4, 64).unwrap();
    assert_eq!(text(Packing::new(3, 64)), "quantize: bits is 3; weights have 8 or 4");
    assert_eq!(text(Packing::new(4, 48)), "quantize: group is 48; with 4 bits use 32, 64 or 128");
    let wrong = make(&[1.0, 2.0, f64::NAN, 1.0], &[2, 2], DType::F32);
    assert!(text(QuantizedWeight::quantize(&wrong, packing)).contains("row 1 of the weight holds infinity or NaN"));
    assert!(text(QuantizedWeight::quantize(&make(&[1.0], &[1], DType::F32), packing)).contains("must be a matrix"));
    let weight = QuantizedWeight::quantize(&make(&[1.0; 6], &[2, 3], DType::F32), packing).unwrap();
    let x = |values: &[f64], dtype| make(values, &[1, values.len()], dtype);
    assert!(text(quantized_linear(&x(&[1.0; 4], DType::F32), &weight, None)).contains("end with the 3 features"));
    let mixed = text(quantized_linear(&x(&[1.0; 3], DType::F16), &weight, None));
    assert!(mixed.contains("quantized_linear: mixes float16 and float32"), "{mixed}");
    let bias = make(&[1.0], &[1], DType::F32);
    assert!(
        text(quantized_linear(&x(&[1.0; 3], DType::F32), &weight, Some(&bias)))
            .contains("the bias must have shape [2]")
    );
    let parts = |packed: &Tensor, scale: &Tensor| text(QuantizedWeight::from_parts(packed, scale, packing, 30));
    assert!(parts(weight.packed(), weight.scale()).contains("the packed weight must have shape [2, 4]"));
    assert!(parts(weight.scale(), weight.scale()).contains("as int32 words"));
}
