//! The numbers of `conv2d.py` beside this file, held against netcl's.

use netcl_core::backend::Queue;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::tensor::Tensor;
use netcl_ops::conv::*;

use crate::support::{Grid, every, is_child, opencl, tensor};

/// The whole numbers of `golden/conv2d.py`.
pub(crate) fn whole(queue: &Queue, shape: &[usize], seed: usize, dtype: DType) -> Tensor {
    let values: Vec<f64> =
        (0..shape.iter().product::<usize>()).map(|i| ((i * 7919 + seed * 104_729) % 1013 % 9) as f64 - 4.0).collect();
    tensor(queue, &values, shape, dtype).0
}

fn golden(device: &DeviceHandle, dtype: DType, lines: &[&str]) -> Result<(), String> {
    let q = &device.queue;
    let mut head = lines[0].split_whitespace();
    let kind = head.next().unwrap();
    let numbers: Vec<usize> = head.map(|n| n.parse().unwrap()).collect();
    let [n, c, h, w, filters, kh, kw, sh, sw, top, bottom, left, right, dh, dw, groups] = numbers[..16] else {
        return Err("a case has at least 16 numbers".to_owned());
    };
    let (stride, padding, dilation) = ([sh, sw], [top, bottom, left, right], [dh, dw]);
    let options = ConvOptions::from(ConvParams { stride, padding, dilation, groups });
    let expected: Vec<Vec<f64>> =
        lines[1..].iter().map(|l| l.split_whitespace().map(|v| v.parse().unwrap()).collect()).collect();
    let x = whole(q, &[n, c, h, w], 1, dtype);
    let bias = whole(q, &[filters], 4, dtype);
    let text = |e: netcl_core::Error| e.to_string();
    let (out, dx, dw) = if kind == "conv2d" {
        let weight = whole(q, &[filters, c / groups, kh, kw], 2, dtype);
        let out = conv2d(&x, &weight, Some(&bias), &options).map_err(text)?;
        let grad = whole(q, out.shape(), 3, dtype);
        let dx = conv2d_backward_data(&grad, &weight, x.shape(), &options).map_err(text)?;
        (out, dx, conv2d_backward_weight(&grad, &x, weight.shape(), &options).map_err(text)?)
    } else {
        let weight = whole(q, &[c, filters / groups, kh, kw], 2, dtype);
        let extra = [numbers[16], numbers[17]];
        let out = conv_transpose2d(&x, &weight, Some(&bias), &options, extra).map_err(text)?;
        let grad = whole(q, out.shape(), 3, dtype);
        let dx = conv_transpose2d_backward_data(&grad, &weight, x.shape(), &options, extra).map_err(text)?;
        (out, dx, conv_transpose2d_backward_weight(&grad, &x, weight.shape(), &options, extra).map_err(text)?)
    };
    for (what, got, expected) in [("out", out, &expected[0]), ("dx", dx, &expected[1]), ("dw", dw, &expected[2])] {
        let got = got.to_f64_vec().map_err(text)?;
        if &got != expected {
            return Err(format!("{what} is {got:?}, expected {expected:?}"));
        }
    }
    Ok(())
}

#[test]
fn pytorch_computes_the_same() {
    let text = include_str!("conv2d.txt");
    let lines: Vec<&str> = text.lines().collect();
    let mut grid = Grid::new("conv2d golden");
    let mut cells = vec![(manager().cpu(), DType::F64), (manager().cpu(), DType::F32)];
    // One other device is enough: all of them are held against f64 above. Children repeat what the native CPU computes.
    if !is_child() {
        cells.extend(opencl().pop().map(|device| (device, DType::F32)));
    }
    for (device, dtype) in cells {
        for case in lines.chunks(4).step_by(every(&device, 3, 3)) {
            grid.cell(&device, format!("{dtype} {}", case[0]), || golden(&device, dtype, case));
        }
    }
    grid.finish(152);
}
