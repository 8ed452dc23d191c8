//! Every layer gives PyTorch's results and gradients with the same weights (golden/layers.json).

mod behaviour;

use netcl_nn::autograd::{DType, Queue, Result, Tensor};
use netcl_nn::*;
use serde_json::Value;

use crate::golden::{check, cpu, devices, fill, host, lengths, named, numbers, slow_compiler, tensor};

/// A layer that is called in another way than by its forward.
struct Called<M> {
    layer: M,
    call: fn(&M, &Tensor) -> Result<Tensor>,
}

impl<M: Module + 'static> Called<M> {
    fn boxed(layer: M, call: fn(&M, &Tensor) -> Result<Tensor>) -> Box<dyn Module> {
        Box::new(Called { layer, call })
    }
}

impl<M: Module> Module for Called<M> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (self.call)(&self.layer, input)
    }
    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        self.layer.visit(see);
    }
    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        self.layer.visit_mut(see);
    }
}

/// Several results as one.
fn in_a_row(results: &[Tensor]) -> Result<Tensor> {
    let flat = results.iter().map(|t| t.flatten(0, -1)).collect::<Result<Vec<_>>>()?;
    functional::cat(&flat.iter().collect::<Vec<_>>(), 0)
}

/// The layer of a case, as golden/layers.py makes it.
fn layer(name: &str, queue: &Queue, dtype: DType) -> Result<Box<dyn Module>> {
    let here = || Build::on(queue).dtype(dtype);
    let norm = BatchNormOptions::new(3);
    let small = TransformerLayerOptions { dim_feedforward: 12, dropout: 0.0, ..TransformerLayerOptions::new(8, 2) };
    let pre_norm = TransformerLayerOptions { norm_first: true, activation: Activation::Gelu, ..small.clone() };
    let both_ways = RecurrentOptions { num_layers: 2, bidirectional: true, ..RecurrentOptions::new(3, 4) };
    let cell = RecurrentCellOptions::new(3, 4);
    let plain = RecurrentOptions { bias: false, batch_first: true, ..RecurrentOptions::new(3, 2) };
    let build = Build::on(queue).dtype(dtype);
    Ok(match name {
        "linear" => Box::new(Linear::new_with(build, LinearOptions::new(3, 4))?),
        "conv1d" => {
            let (stride, padding, dilation) = ([2], 2.into(), [2]);
            let options = Conv1dOptions { stride, padding, dilation, groups: 2, ..Conv1dOptions::new(4, 6, 3) };
            Box::new(Conv1d::new_with(build, options)?)
        }
        "conv2d" => {
            let options = Conv2dOptions { padding: 1.into(), ..Conv2dOptions::new(2, 4, 3) };
            Box::new(Conv2d::new_with(build, options)?)
        }
        "conv2d_options" => {
            let (stride, padding, dilation, plain) = ([2, 1], [1, 2].into(), [1, 2], Conv2dOptions::new(4, 6, [3, 2]));
            let options = Conv2dOptions { stride, padding, dilation, groups: 2, bias: false, ..plain };
            Box::new(Conv2d::new_with(build, options)?)
        }
        "conv_transpose2d" => {
            let (stride, padding, output_padding) = ([2, 1], [1, 0], [1, 0]);
            let plain = ConvTranspose2dOptions::new(4, 6, [3, 2]);
            let options = ConvTranspose2dOptions { stride, padding, output_padding, groups: 2, ..plain };
            Box::new(ConvTranspose2d::new_with(build, options)?)
        }
        "batch_norm1d" => Box::new(BatchNorm1d::new_with(here(), norm)?),
        "batch_norm1d_average" => {
            Box::new(BatchNorm1d::new_with(here(), BatchNormOptions { eps: 1e-3, momentum: None, ..norm })?)
        }
        "batch_norm2d" => Box::new(BatchNorm2d::new_with(here(), BatchNormOptions { momentum: Some(0.25), ..norm })?),
        "batch_norm2d_plain" => {
            let options = BatchNormOptions { affine: false, track_running_stats: false, ..norm };
            Box::new(BatchNorm2d::new_with(here(), options)?)
        }
        "max_pool1d" => {
            let (stride, padding, dilation) = (Some(2.into()), 1.into(), 2.into());
            Box::new(MaxPool1d { stride, padding, dilation, ..MaxPool1d::new(3) })
        }
        "max_pool2d" => {
            let (stride, padding, ceil_mode) = (Some(2.into()), 1.into(), true);
            Box::new(MaxPool2d { stride, padding, ceil_mode, ..MaxPool2d::new(3) })
        }
        "avg_pool1d" => Box::new(AvgPool1d::new(2)),
        "avg_pool2d" => {
            let (stride, padding, count_include_pad) = (Some([2, 1].into()), 1.into(), false);
            Box::new(AvgPool2d { stride, padding, count_include_pad, ..AvgPool2d::new([3, 2]) })
        }
        "adaptive_avg_pool2d" => Box::new(AdaptiveAvgPool2d::new([3, 2])),
        "adaptive_max_pool2d" => Box::new(AdaptiveMaxPool2d::new([3, 2])),
        "layer_norm" => Box::new(LayerNorm::new_with(here(), LayerNormOptions::new([3, 4]))?),
        "layer_norm_plain" => {
            let options = LayerNormOptions { eps: 1e-3, elementwise_affine: false, ..LayerNormOptions::new([4]) };
            Box::new(LayerNorm::new_with(here(), options)?)
        }
        "layer_norm_unbiased" => {
            Box::new(LayerNorm::new_with(here(), LayerNormOptions { bias: false, ..LayerNormOptions::new([4]) })?)
        }
        "rms_norm" => Box::new(RMSNorm::new_with(here(), RMSNormOptions::new([4]))?),
        "rms_norm_default" => {
            Box::new(RMSNorm::new_with(here(), RMSNormOptions { eps: None, ..RMSNormOptions::new([3, 4]) })?)
        }
        "group_norm" => Box::new(GroupNorm::new_with(here(), GroupNormOptions::new(2, 4))?),
        "embedding" => {
            let options = EmbeddingOptions { padding_idx: Some(1), ..EmbeddingOptions::new(5, 3) };
            Box::new(Embedding::new_with(here(), options)?)
        }
        "zero_pad2d" => Box::new(ZeroPad2d::new([1, 0, 2, 1])),
        "constant_pad1d" => Box::new(ConstantPad1d::new([2, -1], 0.5)),
        "constant_pad2d" => Box::new(ConstantPad2d::new(1, -0.25)),
        "reflection_pad1d" => Box::new(ReflectionPad1d::new([1, 2])),
        "reflection_pad2d" => Box::new(ReflectionPad2d::new([1, 2, 2, 1])),
        "replication_pad1d" => Box::new(ReplicationPad1d::new([1, 2])),
        "replication_pad2d" => Box::new(ReplicationPad2d::new([1, 2, 2, 1])),
        "upsample_nearest" => Box::new(Upsample::nearest(2.0)),
        "upsample_bilinear" => Box::new(Upsample::bilinear(2.0, false)),
        "upsample_corners" => Box::new(Upsample::bilinear([5, 3], true)),
        "attention" => {
            let options = MultiheadAttentionOptions { batch_first: false, ..MultiheadAttentionOptions::new(8, 2) };
            Box::new(MultiheadAttention::new_with(build, options)?)
        }
        "attention_causal" => {
            let options = MultiheadAttentionOptions { bias: false, ..MultiheadAttentionOptions::new(8, 2) };
            Called::boxed(MultiheadAttention::new_with(build, options)?, |m, x| m.attend(x, x, x, &Masks::causal()))
        }
        "attention_masked" => {
            Called::boxed(MultiheadAttention::new_with(build, MultiheadAttentionOptions::new(8, 2))?, |m, x| {
                let memory = named(x.queue(), x.dtype(), "memory", &[2, 5, 8]);
                let scores = named(x.queue(), x.dtype(), "scores", &[3, 5]);
                let padding = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
                let padding = attention::hidden(&tensor(x.queue(), x.dtype(), &padding, &[2, 5]))?;
                let masks = Masks { is_causal: false, attn_mask: Some(&scores), key_padding_mask: Some(&padding) };
                m.attend(x, &memory, &memory, &masks)
            })
        }
        "encoder" => {
            Box::new(TransformerEncoderLayer::new_with(build, TransformerLayerOptions { batch_first: false, ..small })?)
        }
        "encoder_first" => {
            let layer = TransformerEncoderLayer::new_with(build, pre_norm)?;
            Called::boxed(layer, |m, x| m.encode(x, &Masks::causal()))
        }
        "decoder" | "decoder_first" => {
            let options = if name == "decoder" { small } else { pre_norm };
            Called::boxed(TransformerDecoderLayer::new_with(build, options)?, |m, x| {
                let memory = named(x.queue(), x.dtype(), "memory", &[2, 5, 8]);
                let scores = named(x.queue(), x.dtype(), "scores", &[3, 5]);
                let padding = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
                let padding = attention::hidden(&tensor(x.queue(), x.dtype(), &padding, &[2, 5]))?;
                let masks = Masks { is_causal: false, attn_mask: Some(&scores), key_padding_mask: Some(&padding) };
                m.decode(x, &memory, &Masks::causal(), &masks)
            })
        }
        "lstm" => Called::boxed(LSTM::new_with(here(), both_ways)?, |m, x| {
            let [h, c] = ["h", "c"].map(|name| named(x.queue(), x.dtype(), name, &[4, 2, 4]));
            let (out, (h, c)) = m.run(x, Some((&h, &c)))?;
            in_a_row(&[out, h, c])
        }),
        "gru" => Called::boxed(GRU::new_with(here(), both_ways)?, |m, x| {
            let (out, h) = m.run(x, Some(&named(x.queue(), x.dtype(), "h", &[4, 2, 4])))?;
            in_a_row(&[out, h])
        }),
        "rnn" => Called::boxed(
            RNN::new_with(here(), RNNOptions { num_layers: 2, bidirectional: true, ..RNNOptions::new(3, 4) })?,
            |m, x| {
                let (out, h) = m.run(x, Some(&named(x.queue(), x.dtype(), "h", &[4, 2, 4])))?;
                in_a_row(&[out, h])
            },
        ),
        "rnn_relu" => {
            let (nonlinearity, batch_first) = (Nonlinearity::Relu, true);
            Box::new(RNN::new_with(here(), RNNOptions { nonlinearity, batch_first, ..RNNOptions::new(3, 2) })?)
        }
        "lstm_cell" => Called::boxed(LSTMCell::new_with(here(), cell)?, |m, x| {
            let [h, c] = ["h", "c"].map(|name| named(x.queue(), x.dtype(), name, &[2, 4]));
            let (h, c) = m.run(x, Some((&h, &c)))?;
            let (h, c) = m.run(x, Some((&h, &c)))?;
            in_a_row(&[h, c])
        }),
        "gru_cell" => Called::boxed(GRUCell::new_with(here(), cell)?, |m, x| {
            m.run(x, Some(&m.run(x, Some(&named(x.queue(), x.dtype(), "h", &[2, 4])))?))
        }),
        "rnn_cell" => Called::boxed(
            RNNCell::new_with(
                here(),
                RNNCellOptions { nonlinearity: Nonlinearity::Relu, ..RNNCellOptions::new(3, 4) },
            )?,
            |m, x| m.run(x, Some(&m.run(x, Some(&named(x.queue(), x.dtype(), "h", &[2, 4])))?)),
        ),
        "lstm_plain" => Box::new(LSTM::new_with(here(), plain)?),
        "gru_plain" => Box::new(GRU::new_with(here(), plain)?),
        "gpt" => {
            Box::new(GPT::new_with(build, GPTOptions { n_layer: 2, n_head: 2, n_embd: 8, ..GPTOptions::new(7, 6) })?)
        }
        "rotary_attention" => {
            let options = RotaryAttentionOptions { qk_norm: false, bias: true, ..RotaryAttentionOptions::new(8, 2) };
            Box::new(RotaryAttention::new_with(build, options)?)
        }
        _ => panic!("golden/layers.json has a case {name} that is unknown here"),
    })
}

/// Runs the chosen cases and compares all that PyTorch said.
fn compare(queue: &Queue, dtype: DType, tolerance: f64, chosen: impl Fn(&str) -> bool) {
    let cases: Value = serde_json::from_str(include_str!("golden/layers.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        if !chosen(name) {
            continue;
        }
        let (shape, steps) = (lengths(&case["shape"]), case["steps"].as_u64().unwrap());
        let mut layer = layer(name, queue, dtype).unwrap();
        fill(&*layer);
        let step = |number: u64| {
            layer.zero_grad();
            let x = match case.get("integers") {
                Some(values) => tensor(queue, dtype, &numbers(values), &shape),
                None => named(queue, dtype, &format!("input{number}"), &shape).with_grad(),
            };
            let out = layer.forward(&x).unwrap();
            let upstream = named(queue, dtype, "upstream", out.shape());
            (&out * &upstream).unwrap().sum((), false).unwrap().backward().unwrap();
            (x, out)
        };
        let (mut x, mut out) = step(0);
        for number in 1..steps {
            (x, out) = step(number);
        }
        check(&format!("{name}: output"), &host(&out), &numbers(&case["output"]), tolerance);
        if let Some(expected) = case.get("input_grad") {
            check(&format!("{name}: input"), &host(&x.grad().unwrap()), &numbers(expected), tolerance);
        }
        let (parameters, expected) = (layer.named_parameters(), case["grads"].as_object().unwrap());
        assert_eq!(parameters.len(), expected.len(), "{name}: {:?}", expected.keys().collect::<Vec<_>>());
        for (key, parameter) in parameters {
            let expected = expected.get(&key).unwrap_or_else(|| panic!("{name}: PyTorch has no {key}"));
            check(&format!("{name}: {key}"), &host(&parameter.grad().unwrap()), &numbers(expected), tolerance);
        }
        let (buffers, expected) = (layer.named_buffers(), case["buffers"].as_object().unwrap());
        assert_eq!(buffers.len(), expected.len(), "{name}: {:?}", expected.keys().collect::<Vec<_>>());
        for (key, buffer) in buffers {
            check(&format!("{name}: {key}"), &host(&buffer), &numbers(&expected[&key]), tolerance);
        }
        if let Some(expected) = case.get("eval") {
            layer.eval();
            let out = layer.forward(&named(queue, dtype, "input0", &shape)).unwrap();
            check(&format!("{name}: eval"), &host(&out), &numbers(expected), tolerance);
        }
    }
}

#[test]
fn layers_equal_pytorch_in_float64_on_the_cpu() {
    compare(&cpu(), DType::F64, 1e-10, |_| true);
}

/// 16-bit layers compute in float32 and store rounded values in between.
#[test]
fn layers_come_close_to_pytorch_in_16_bits_on_the_cpu() {
    compare(&cpu(), DType::F16, 0.01, |_| true);
    compare(&cpu(), DType::BF16, 0.08, |_| true);
}

#[test]
fn layers_equal_pytorch_in_float32_on_every_device() {
    for device in devices().iter().filter(|device| !slow_compiler(device)) {
        compare(&device.queue, DType::F32, 2e-5, |_| true);
    }
}

/// Kernels are tested in netcl-ops; here one layer of each family must do where a kernel takes long to build.
#[test]
fn a_sample_of_layers_equals_pytorch_where_kernels_are_slow_to_build() {
    const SAMPLE: [&str; 8] =
        ["linear", "conv2d", "batch_norm2d", "max_pool2d", "layer_norm", "embedding", "attention_masked", "gru"];
    for device in devices().iter().filter(|device| slow_compiler(device)) {
        compare(&device.queue, DType::F32, 2e-5, |name| SAMPLE.contains(&name));
    }
}
