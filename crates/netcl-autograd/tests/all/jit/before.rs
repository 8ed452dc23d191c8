//! What only a product or a convolution reads is computed by it.

use netcl_autograd::jit::jit;
use netcl_autograd::ops::conv::{ConvParams, conv2d};
use netcl_autograd::{Result, Tensor, no_grad};
use netcl_core::backend::Queue;

use super::{close, compare, launches, queues, ramp};

type Layer = fn(&[&Tensor]) -> Result<Tensor>;

/// Activations, scales and transposed copies in front of a product.
#[test]
fn what_comes_before_a_product_is_computed_while_it_is_read() {
    let layers: [(&str, Layer); 4] = [
        ("relu(x) @ w", |t| t[0].relu()?.matmul(t[1])),
        ("(x * scale + shift) @ w", |t| (&(t[0] * t[2])? + t[3])?.matmul(t[1])),
        ("x @ tanh(w)", |t| t[0].matmul(&t[1].tanh()?)),
        ("relu(x).T @ x", |t| t[0].relu()?.transpose(0, 1)?.matmul(t[0])),
    ];
    for queue in queues() {
        let (x, w) = (ramp(&queue, &[96, 80], 1.0), ramp(&queue, &[80, 72], 0.5));
        let (scale, shift) = (ramp(&queue, &[80], 1.0), ramp(&queue, &[96, 1], 0.5));
        let inputs = [&x, &w, &scale, &shift];
        for (name, layer) in layers {
            compare(layer, &inputs, 1e-4);
            let _scope = no_grad();
            let (compiled, plain) = (jit(layer), jit(|t: &[&Tensor]| t[0].matmul(t[1])));
            let text = compiled.explain(&inputs).unwrap();
            close(&compiled.call(&inputs).unwrap(), &layer(&inputs).unwrap(), 1e-5);
            let alone = launches(&plain, &inputs);
            assert_eq!(launches(&compiled, &inputs), alone, "{name} on {}: {text}", queue.device_name());
            assert!(text.contains("before: "), "{text}");
        }
        // Batches, an operand that broadcasts over them, and 16-bit floats, which are not rounded on the way.
        let _scope = no_grad();
        let (x, w) = (ramp(&queue, &[3, 50, 40], 1.0), ramp(&queue, &[40, 70], 0.5));
        let scale = ramp(&queue, &[3, 1, 1], 1.0);
        let layer = |t: &[&Tensor]| (t[0] * t[2])?.relu()?.matmul(t[1]);
        close(&jit(layer).call(&[&x, &w, &scale]).unwrap(), &layer(&[&x, &w, &scale]).unwrap(), 1e-5);
        let row = ramp(&queue, &[1, 50, 40], 1.0);
        close(&jit(layer).call(&[&row, &w, &scale]).unwrap(), &layer(&[&row, &w, &scale]).unwrap(), 1e-5);
        let dtype = netcl_core::dtype::DType::BF16;
        let narrow = [&x, &w, &scale].map(|t| t.cast(dtype).unwrap());
        let narrow: Vec<&Tensor> = narrow.iter().collect();
        close(&jit(layer).call(&narrow).unwrap(), &layer(&narrow).unwrap(), 2e-2);
        // On CPUs a few rows are read where they lie.
        let (x, w) = (ramp(&queue, &[2, 240], 1.0), ramp(&queue, &[240, 72], 0.5));
        let text = jit(|t: &[&Tensor]| t[0].relu()?.matmul(t[1])).explain(&[&x, &w]).unwrap();
        assert_eq!(text.contains("not fused: "), packs(&queue), "{text}");
        // A batch with a factor of its own for every matrix has few rows in each.
        let (x, scale) = (ramp(&queue, &[8, 8, 40], 1.0), ramp(&queue, &[8, 1, 1], 1.0));
        let w = ramp(&queue, &[40, 70], 0.5);
        close(&jit(layer).call(&[&x, &w, &scale]).unwrap(), &layer(&[&x, &w, &scale]).unwrap(), 1e-5);
    }
}

/// Whether products of some size copy their operands into panels: on CPUs they do.
fn packs(queue: &Queue) -> bool {
    match queue {
        Queue::Cpu(_) => true,
        Queue::OpenCl(stream) => stream.device().device_type() == netcl_core::device::DeviceType::Cpu,
    }
}

/// Padding stays zero, though the expressions make something else of a zero; strides, dilation and groups, tensors that broadcast.
#[test]
fn what_comes_before_a_convolution_is_computed_while_it_is_read() {
    let layers: [(&str, Layer); 3] = [
        ("conv(relu(x * scale + shift))", |t| {
            let image = (&(t[0] * t[2])? + t[3])?.relu()?;
            conv2d(&image, t[1], None, &ConvParams { padding: [1; 4], ..Default::default() })
        }),
        ("conv(abs(x + shift)), strided", |t| {
            let options = ConvParams { stride: [2, 1], padding: [2, 1, 0, 1], dilation: [1, 2], ..Default::default() };
            conv2d(&(t[0] + t[3])?.abs()?, t[1], None, &options)
        }),
        ("1x1", |t| conv2d(&(t[0] * t[2])?.relu()?, t[4], None, &ConvParams::default())),
    ];
    for queue in queues() {
        let (x, w) = (ramp(&queue, &[2, 6, 11, 9], 1.0), ramp(&queue, &[8, 6, 3, 3], 0.5));
        let (scale, shift) = (ramp(&queue, &[6, 1, 1], 1.0), ramp(&queue, &[1, 6, 1, 1], 0.7));
        let single = ramp(&queue, &[8, 6, 1, 1], 0.5);
        let inputs = [&x, &w, &scale, &shift, &single];
        for (name, layer) in layers {
            compare(layer, &inputs, 1e-4);
            let _scope = no_grad();
            let compiled = jit(layer);
            let text = compiled.explain(&inputs).unwrap();
            close(&compiled.call(&inputs).unwrap(), &layer(&inputs).unwrap(), 1e-5);
            // What a single pixel's product does is the product's affair.
            if name != "1x1" {
                assert!(text.contains("before: "), "{name} on {}: {text}", queue.device_name());
                assert!(!text.contains("pointwise"), "{name} on {}: {text}", queue.device_name());
            } else {
                assert!(text.contains("before: ") || text.contains("not fused: "), "{name}: {text}");
            }
        }
    }
}
