//! The kernels of layers on tiny odd shapes and every OpenCL device, held against the native CPU; forward and backward.
//!
//! Made for oclgrind, as `small.rs` is. A new kernel of a layer belongs here.

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::random::Generator;
use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::Tensor;
use netcl_ops as ops;
use netcl_ops::attention::{
    Append, AttentionOptions, RotaryForm, RotaryTables, attention_append, force_group, force_split,
};
use netcl_ops::attention::{rotary, scaled_dot_product_attention, scaled_dot_product_attention_backward};
use netcl_ops::conv::{ConvOptions, ConvParams, Variant, conv_transpose2d, conv2d};
use netcl_ops::conv::{conv2d_backward_data, conv2d_backward_weight, conv2d_with_statistics};
use netcl_ops::integer::{self, IntegerOp, integer};
use netcl_ops::norm::Affine;
use netcl_ops::pad::PadMode;
use netcl_ops::pool::{Averaging, Window};
use netcl_ops::recurrent::{Cell, Recurrent, RecurrentUpstream, recurrent, recurrent_backward};

use crate::support::{Tolerance, opencl, random, tensor};

/// Runs the same code on the native CPU and on a device, and holds the results against each other.
fn same(device: &DeviceHandle, what: &str, run: impl Fn(&Queue) -> Result<Vec<Tensor>>) {
    let expected = run(&manager().cpu().queue).unwrap_or_else(|e| panic!("{what} on the CPU: {e}"));
    let got = run(&device.queue).unwrap_or_else(|e| panic!("{what} on {}: {e}", device.device_name));
    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert_eq!(got.shape(), expected.shape(), "{what}, result {i}");
        let check =
            Tolerance::permissive(got.dtype()).check(&got.to_f64_vec().unwrap(), &expected.to_f64_vec().unwrap());
        check.unwrap_or_else(|why| panic!("{what} on {}, result {i}: {why}", device.device_name));
    }
}

fn values(queue: &Queue, shape: &[usize], seed: u64) -> Tensor {
    tensor(queue, &random(shape.iter().product(), seed, (-1.0, 1.0)), shape, DType::F32).0
}

#[test]
fn convolutions_in_every_variant() {
    let (image, filters) = (Shape::from([2, 2, 5, 6]), Shape::from([3, 2, 3, 3]));
    for device in opencl() {
        for variant in [
            None,
            Some(Variant::Naive),
            Some(Variant::Im2col),
            Some(Variant::ImplicitGemm),
            Some(Variant::TiledLocal),
            Some(Variant::Winograd),
        ] {
            let params = ConvParams { padding: [1, 1, 1, 0], ..Default::default() };
            let options = || ConvOptions { params, variant, ..Default::default() };
            same(&device, &format!("conv2d, {variant:?}"), |q| {
                let (x, w, b) = (values(q, &image, 1), values(q, &filters, 2), values(q, &[3], 3));
                let y = conv2d(&x, &w, Some(&b), &options())?;
                let grad = values(q, y.shape(), 4);
                let dx = conv2d_backward_data(&grad, &w, &image, &options())?;
                Ok(vec![dx, conv2d_backward_weight(&grad, &x, &filters, &options())?, y])
            });
        }
        for variant in [None, Some(Variant::ImplicitGemm)] {
            same(&device, &format!("conv2d with statistics, {variant:?}"), |q| {
                let (x, w) = (values(q, &image, 1), values(q, &filters, 2));
                // Channels side by side in memory.
                let x = x.permute(&[0, 2, 3, 1])?.contiguous()?.permute(&[0, 3, 1, 2])?;
                let params = ConvParams { padding: [1; 4], ..Default::default() };
                let options = ConvOptions { params, variant, ..Default::default() };
                let (y, statistics) = conv2d_with_statistics(&x, &w, None, &options)?;
                let normal = ops::batch_norm_with(&y, &statistics, Affine::default(), None, 1e-5)?;
                Ok(vec![y, normal.output, normal.mean, normal.rstd])
            });
        }
        same(&device, "statistics in many parts", |q| {
            // More tiles than one work-item merges.
            let (x, w) = (values(q, &[3, 1, 24, 30], 1), values(q, &[2, 1, 1, 1], 2));
            let options = ConvOptions { variant: Some(Variant::ImplicitGemm), ..Default::default() };
            let (y, statistics) = conv2d_with_statistics(&x, &w, None, &options)?;
            let normal = ops::batch_norm_with(&y, &statistics, Affine::default(), None, 1e-5)?;
            Ok(vec![normal.output, normal.mean, normal.rstd])
        });
        same(&device, "conv2d with stride, dilation and groups", |q| {
            let params = ConvParams { stride: [2, 1], dilation: [1, 2], groups: 2, padding: [2, 0, 1, 3] };
            let options = params.into();
            let (x, w, filters) = (values(q, &image, 1), values(q, &[4, 1, 2, 3], 2), Shape::from([4, 1, 2, 3]));
            let y = conv2d(&x, &w, None, &options)?;
            let grad = values(q, y.shape(), 4);
            let dx = conv2d_backward_data(&grad, &w, &image, &options)?;
            Ok(vec![dx, conv2d_backward_weight(&grad, &x, &filters, &options)?, y])
        });
        for (what, stride, dilation, kernel) in
            [("in two steps", [2, 2], [1, 1], [3, 3]), ("with a large window", [1, 1], [1, 1], [9, 8])]
        {
            same(&device, &format!("depthwise conv2d {what}"), |q| {
                let options = ConvParams { stride, dilation, groups: 2, padding: [4; 4] }.into();
                let filters = Shape::from([4, 1, kernel[0], kernel[1]]);
                let (x, w) = (values(q, &image, 1), values(q, &filters, 2));
                // Channels side by side in memory.
                let x = x.permute(&[0, 2, 3, 1])?.contiguous()?.permute(&[0, 3, 1, 2])?;
                let y = conv2d(&x, &w, None, &options)?;
                let grad = values(q, y.shape(), 4);
                let dx = conv2d_backward_data(&grad, &w, &image, &options)?;
                Ok(vec![dx, conv2d_backward_weight(&grad, &x, &filters, &options)?, y])
            });
        }
        same(&device, "conv_transpose2d", |q| {
            let options = ConvParams { stride: [2, 2], ..Default::default() }.into();
            Ok(vec![conv_transpose2d(&values(q, &[1, 3, 3, 2], 1), &values(q, &filters, 2), None, &options, [1, 0])?])
        });
    }
}

#[test]
fn normalisations() {
    for device in opencl() {
        let shape = [3, 4, 5];
        same(&device, "batch_norm", |q| {
            let (x, w, b, grad) = (values(q, &shape, 1), values(q, &[4], 2), values(q, &[4], 3), values(q, &shape, 4));
            let affine = Affine { weight: Some(&w), bias: Some(&b) };
            let y = ops::batch_norm(&x, affine, None, 1e-5)?;
            let back = ops::batch_norm_backward(&grad, &x, affine, &y.mean, &y.rstd, true)?;
            Ok([y.output, back.input].into_iter().chain(back.weight).chain(back.bias).collect())
        });
        same(&device, "layer_norm", |q| {
            let (x, w, b, grad) =
                (values(q, &shape, 1), values(q, &[4, 5], 2), values(q, &[4, 5], 3), values(q, &shape, 4));
            let affine = Affine { weight: Some(&w), bias: Some(&b) };
            let y = ops::layer_norm(&x, 2, affine, 1e-5)?;
            let back = ops::layer_norm_backward(&grad, &x, 2, affine, &y.mean, &y.rstd)?;
            Ok([y.output, back.input].into_iter().chain(back.weight).chain(back.bias).collect())
        });
        same(&device, "group_norm", |q| {
            let (x, w, grad) = (values(q, &shape, 1), values(q, &[4], 2), values(q, &shape, 4));
            let affine = Affine { weight: Some(&w), bias: None };
            let y = ops::group_norm(&x, 2, affine, 1e-5)?;
            let back = ops::group_norm_backward(&grad, &x, 2, affine, &y.mean, &y.rstd)?;
            Ok([y.output, back.input].into_iter().chain(back.weight).collect())
        });
        same(&device, "rms_norm", |q| {
            let (x, w, grad) = (values(q, &[3, 67], 1), values(q, &[67], 2), values(q, &[3, 67], 4));
            let y = ops::rms_norm(&x, 1, Some(&w), 1e-5)?;
            let back = ops::rms_norm_backward(&grad, &x, 1, Some(&w), &y.rstd)?;
            Ok([y.output, back.input].into_iter().chain(back.weight).collect())
        });
    }
}

#[test]
fn windows_images_and_margins() {
    let shape = Shape::from([2, 2, 5, 7]);
    let window = Window { stride: [2, 1], padding: [1, 1], ceil_mode: true, ..Window::new([3, 2]) };
    for device in opencl() {
        same(&device, "max_pool2d", |q| {
            let pooled = ops::max_pool2d(&values(q, &shape, 1), &window)?;
            let grad = values(q, pooled.output.shape(), 2);
            Ok(vec![ops::max_pool2d_backward(&grad, &shape, &pooled.indices, &window)?, pooled.output])
        });
        same(&device, "avg_pool2d", |q| {
            let y = ops::avg_pool2d(&values(q, &shape, 1), &window, Averaging::default())?;
            let grad = values(q, y.shape(), 2);
            Ok(vec![ops::avg_pool2d_backward(&grad, &shape, &window, Averaging::default())?, y])
        });
        same(&device, "maxima of long rows", |q| {
            let window = Window { stride: [1, 2], padding: [1, 1], ..Window::new([2, 3]) };
            Ok(vec![ops::max_pool2d(&values(q, &[2, 3, 23], 1), &window)?.output])
        });
        same(&device, "adaptive pooling", |q| {
            let x = values(q, &shape, 1);
            let (mean, most) = (ops::adaptive_avg_pool2d(&x, [3, 4])?, ops::adaptive_max_pool2d(&x, [2, 3])?);
            let back = ops::adaptive_avg_pool2d_backward(&values(q, mean.shape(), 2), &shape)?;
            Ok(vec![mean, most.output, back])
        });
        same(&device, "resampling", |q| {
            let x = values(q, &shape, 1);
            let (near, smooth) = (ops::upsample_nearest(&x, [8, 3])?, ops::upsample_bilinear(&x, 2.0, false)?);
            let of_near = ops::upsample_nearest_backward(&values(q, near.shape(), 2), &shape, [8, 3])?;
            let of_smooth = ops::upsample_bilinear_backward(&values(q, smooth.shape(), 3), &shape, 2.0, false)?;
            Ok(vec![near, smooth, of_near, of_smooth])
        });
        for mode in [PadMode::Constant(2.0), PadMode::Reflect, PadMode::Replicate] {
            same(&device, &format!("pad {mode:?}"), |q| {
                let y = ops::pad(&values(q, &shape, 1), &[(1, 2), (3, 0)], mode)?;
                Ok(vec![ops::pad_backward(&values(q, y.shape(), 2), &shape, &[(1, 2), (3, 0)], mode)?, y])
            });
        }
    }
}

#[test]
fn indices_order_and_chance() {
    for device in opencl() {
        let indices = |q: &Queue, values: &[i64], shape: &[usize]| IndexTensor::from_host(q, values, shape);
        // Rows of whole vectors and of elements.
        let long = |q: &Queue| -> Result<Vec<Tensor>> {
            let (x, at) = (values(q, &[17, 83], 1), indices(q, &[3, 0, 16, 3, 9], &[5])?);
            Ok(vec![ops::embedding(&x, &at)?, ops::index_add(&x, 0, &at, &values(q, &[5, 83], 2))?])
        };
        same(&device, "long rows", long);
        same(&device, "indexing", |q| {
            let (x, few) = (values(q, &[5, 3], 1), indices(q, &[4, 0, 4], &[3])?);
            let many = indices(q, &[4, 0, 1, 3, 0, 2], &[2, 3])?;
            Ok(vec![
                ops::index_select(&x, 0, &few)?,
                ops::index_select_backward(&values(q, &[3, 3], 2), 0, &few, 5)?,
                ops::gather(&x, 0, &many)?,
                ops::scatter_add(&x, 0, &many, &values(q, &[2, 3], 3))?,
                ops::embedding(&x, &few)?,
                ops::one_hot(&few, 5, DType::F32)?,
                {
                    ops::index_put(&x, 0, &few, &values(q, &[3, 3], 4))?;
                    x.clone()
                },
                ops::positions(&few, &many, 4)?.tensor().cast(DType::F32)?,
                integer(IntegerOp::FloorDivide, &[many.tensor(), few.tensor()], DType::I32)?.cast(DType::F32)?,
                integer::reduce(IntegerOp::Add, many.tensor(), 1, false, 0)?.cast(DType::F32)?,
                integer::scan(IntegerOp::Maximum, many.tensor(), 0)?.cast(DType::F32)?,
                ops::pick(&x, 1, &indices(q, &[2, 0, 1, 1, 2], &[5])?, None)?,
            ])
        });
        same(&device, "sort and topk", |q| {
            let x = values(q, &[3, 37], 1);
            let (sorted, best) = (ops::sort(&x, 1, false)?, ops::topk(&x, 5, 1, true)?);
            Ok(vec![ops::sort_backward(&values(q, &[3, 5], 2), 1, &best.indices, 37)?, sorted.values, best.values])
        });
        same(&device, "dropout", |q| {
            Ok(vec![ops::dropout(&values(q, &[5, 7], 1), 0.4, Some(&mut Generator::new(3)))?.0])
        });
    }
}

#[test]
fn recurrent_layers() {
    for device in opencl() {
        for (cell, batch) in [(Cell::Lstm, 5), (Cell::Gru, 1), (Cell::Tanh, 3), (Cell::Relu, 1)] {
            same(&device, &format!("recurrent {cell:?}, batch {batch}"), |q| {
                let width = cell.gates() * 35;
                let (input, weight) = (values(q, &[3, batch, width], 1), values(q, &[width, 35], 2));
                let (bias, hidden) = (values(q, &[width], 3), values(q, &[batch, 35], 4));
                let (bias, hidden) = (Some(&bias), Some(&hidden));
                let layer =
                    Recurrent { cell, input: &input, weight: &weight, bias, hidden, memory: None, reverse: false };
                let result = recurrent(&layer, true)?;
                let grad = values(q, result.out.shape(), 5);
                let upstream = RecurrentUpstream { out: Some(&grad), hidden, memory: None };
                let back = recurrent_backward(&layer, &result, &upstream)?;
                Ok(vec![result.out, back.weight()?, back.hidden()?, back.input])
            });
        }
    }
}

#[test]
fn attention_and_rotation() {
    for device in opencl() {
        for (side, causal) in [(1, false), (4, true)] {
            same(&device, &format!("attention, groups of {side}"), |q| {
                let (queries, keys) = (values(q, &[1, 2, 5, 3], 1), values(q, &[1, 2, 7, 3], 2));
                let (v, mask) = (values(q, &[1, 2, 7, 4], 3), values(q, &[5, 7], 4));
                let options = AttentionOptions { causal, mask: Some(&mask), ..Default::default() };
                let options = options.with_dropout(0.3, &queries, &keys, Some(&mut Generator::new(5)));
                force_group(side, || {
                    let saved = scaled_dot_product_attention(&queries, &keys, &v, &options)?;
                    let grad = values(q, saved.out.shape(), 6);
                    let back = scaled_dot_product_attention_backward(&grad, &queries, &keys, &v, &saved, &options)?;
                    Ok(vec![saved.out, back.q, back.k, back.v])
                })
            });
        }
        for (parts, dtype) in [(1, DType::F32), (3, DType::F32), (9, DType::BF16)] {
            same(&device, &format!("attention in {parts} parts, {dtype}"), |q| {
                let cast = |t: Tensor| t.cast(dtype);
                let (queries, keys) = (cast(values(q, &[1, 2, 2, 4], 1))?, cast(values(q, &[1, 2, 7, 4], 2))?);
                let (v, mask) = (cast(values(q, &[1, 2, 7, 8], 3))?, cast(values(q, &[2, 7], 4))?);
                let options = AttentionOptions { mask: Some(&mask), ..Default::default() };
                Ok(vec![force_split(parts, || scaled_dot_product_attention(&queries, &keys, &v, &options))?.out])
            });
            same(&device, &format!("attention that appends, in {parts} parts, {dtype}"), |q| {
                let cast = |t: Tensor| t.cast(dtype);
                let (one, keys) = (cast(values(q, &[1, 2, 1, 5], 1))?, cast(values(q, &[1, 2, 7, 5], 2))?);
                let (new, place) = (cast(values(q, &[1, 2, 1, 5], 3))?, IndexTensor::from_host(q, &[4i64], [1])?);
                let v = keys.duplicate()?;
                let append = Append { key: &new, value: &one, place: &place };
                let options = AttentionOptions::default();
                let out = match force_split(parts, || attention_append(&one, &keys, &v, &append, &options))? {
                    Some(out) => out,
                    None => {
                        ops::index_put(&keys, 2, &place, &new)?;
                        ops::index_put(&v, 2, &place, &one)?;
                        let seen = |t: &Tensor| t.slice(2, Slice::new(Some(0), Some(5), 1));
                        scaled_dot_product_attention(&one, &seen(&keys)?, &seen(&v)?, &options)?.out
                    }
                };
                Ok(vec![out, keys, v])
            });
        }
        same(&device, "rotary", |q| {
            let tables = RotaryTables::new(q, 3, 5, 4, 1e4, DType::F32)?;
            let x = values(q, &[2, 5, 4], 1);
            Ok(vec![rotary(&x, &tables, RotaryForm::Interleaved)?, rotary(&x, &tables, RotaryForm::HalfSplit)?])
        });
    }
}
