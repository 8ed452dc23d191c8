//! Linear layers with weights of 8 and 4 bits.

use netcl_nn::autograd::{DType, Result, Tensor};
use netcl_nn::*;

use crate::golden::{cpu, devices, host, named};

#[test]
fn a_layer_computes_with_the_rounded_weight() {
    for device in devices() {
        for (bits, bound) in [(8, 0.01), (4, 0.15)] {
            let queue = &device.queue;
            let linear = Linear::from_parameters(
                named(queue, DType::F32, "weight", &[7, 50]),
                Some(named(queue, DType::F32, "bias", &[7])),
            )
            .unwrap();
            let layer = QuantizedLinear::from_linear(&linear, bits, 32).unwrap();
            let input = |shape: &[usize]| named(queue, DType::F32, "x", shape).with_grad();
            let (x, same) = (input(&[2, 3, 50]), input(&[2, 3, 50]));
            let (y, expected) = (layer.forward(&x).unwrap(), linear.forward(&same).unwrap());
            y.sum((), false).unwrap().backward().unwrap();
            expected.sum((), false).unwrap().backward().unwrap();
            let (grad, of_same) = (x.grad().unwrap(), same.grad().unwrap());
            for (got, expected) in [(y.detach(), expected.detach()), (grad.detach(), of_same.detach())] {
                assert_eq!(got.shape(), expected.shape());
                let (got, expected) = (host(&got), host(&expected));
                let norm = expected.iter().map(|v| v * v).sum::<f64>().sqrt();
                let apart = got.iter().zip(&expected).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
                assert!(apart < bound * norm, "{}: {bits} bits: {apart} of {norm}", device.device_name);
            }
            // As float16, and with its state in a new layer.
            let mut half = QuantizedLinear::new_with(
                queue,
                QuantizedLinearOptions { bits, group: 32, ..QuantizedLinearOptions::new(50, 7) },
            )
            .unwrap();
            assert_eq!(host(&half.forward(&x.detach()).unwrap()), [0.0; 42]);
            half.load_state_dict(&layer.state_dict(), Strict::Yes).unwrap();
            assert_eq!(host(&half.forward(&x.detach()).unwrap()), host(&y.detach()));
            half.cast(DType::F16).unwrap();
            let z = half.forward(&named(queue, DType::F16, "x", &[2, 3, 50])).unwrap();
            assert_eq!(z.dtype(), DType::F16);
            assert!(host(&z).iter().zip(host(&y.detach())).all(|(a, b)| (a - b).abs() < 0.05));
        }
    }
}

#[test]
fn every_linear_of_a_model_is_replaced() {
    let queue = cpu();
    let decoder = DecoderBlock::new_with(&queue, DecoderBlockOptions::new(32, 2)).unwrap();
    let encoder = TransformerEncoderLayer::new(&queue, 32, 2).unwrap();
    let hooked = Hooked::new(Box::new(Linear::new(&queue, 32, 4).unwrap()) as Box<dyn Module>);
    let mut model = sequential![decoder, encoder, hooked];
    model.eval();
    let x = named(&queue, DType::F32, "x", &[1, 5, 32]);
    let expected = host(&model.forward(&x).unwrap().detach());
    let options = Quantization { skip: vec!["0.ffn".to_owned()], ..Quantization::default() };
    let names = quantize(&mut model, &options).unwrap();
    assert_eq!(names, ["0.attn.qkv", "0.attn.proj", "1.self_attn.out_proj", "1.linear1", "1.linear2", "2"]);
    let kinds: Vec<_> = model.named_modules().into_iter().map(|(name, module)| (name, module.kind())).collect();
    assert!(kinds.contains(&("2".to_owned(), "QuantizedLinear")) && kinds.contains(&("0.ffn.up".to_owned(), "Linear")));
    let got = host(&model.forward(&x).unwrap());
    assert!(got != expected && got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 0.05), "{got:?} {expected:?}");
    assert!(model.state_dict().get("1.linear1.scale").is_some());
    let error = model.forward(&named(&queue, DType::F32, "x", &[1, 5, 31])).unwrap_err().to_string();
    assert!(error.starts_with("0."), "{error}");
    // A box says the path of what is inside.
    let mlp = FeedForward::new_with(&queue, FeedForwardOptions::new(8, 4)).unwrap();
    let error = sequential![mlp].forward(&named(&queue, DType::F32, "x", &[1, 7])).unwrap_err().to_string();
    assert_eq!(error, "0.c_fc (Linear): expected input (..., 8), got (1, 7)");
}

#[derive(Module)]
struct Fixed {
    fc: Linear,
}

impl Fixed {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.fc.forward(x)
    }
}

#[test]
fn what_cannot_be_quantised_is_named() {
    let queue = cpu();
    let linear = || Linear::new(&queue, 4, 2).unwrap();
    let mut model = sequential![linear(), Fixed { fc: linear() }];
    let mut text = |bits, skip: &[&str]| {
        let skip = skip.iter().map(|&name| name.to_owned()).collect();
        quantize(&mut model, &Quantization { bits, group: 64, skip }).unwrap_err().to_string()
    };
    assert!(text(8, &[]).contains("1.fc is a field of type Linear; make it a Box<dyn Module>, or name it in skip"));
    assert!(text(8, &["1.fc", "head"]).contains(r#"skip names "head", where there is no Linear; there are 0, 1.fc"#));
    assert!(text(2, &[]).contains("bits is 2; weights have 8 or 4"));
    assert!(model.named_modules().iter().all(|(_, module)| module.kind() != "QuantizedLinear"));
}
