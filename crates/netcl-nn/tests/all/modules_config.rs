//! Networks from data and back.

use netcl_nn::autograd::{ErrorKind, Queue, Result, Tensor, manager};
use netcl_nn::config::{from_json, layer_kinds, to_json};
use netcl_nn::*;

fn cpu() -> Queue {
    manager().cpu().queue
}

fn error(json: &str) -> String {
    let error = from_json(json).and_then(|config| build_sequential(&cpu(), &config)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value, "{error}");
    error.to_string()
}

/// Settings of the kinds that cannot be made without any.
fn needed(kind: &str) -> &'static str {
    match kind {
        "Linear" => r#"{"in_features": 3, "out_features": 2, "bias": false, "dtype": "float64"}"#,
        "Sequential" | "ModuleList" => {
            r#"{"layers": [{"type": "Tanh"}, {"type": "Sequential", "args": {"layers": []}}]}"#
        }
        "Residual" => {
            r#"{"inner": {"type": "Linear", "args": {"in_features": 3, "out_features": 4}},
                "shortcut": {"type": "Linear", "args": {"in_features": 3, "out_features": 4, "bias": false}},
                "activation": {"type": "LeakyReLU", "args": {"negative_slope": 0.25}}}"#
        }
        "Conv1d" => {
            r#"{"in_channels": 4, "out_channels": 6, "kernel_size": 3, "stride": 2, "pad": 1, "dilation": 2, "groups": 2}"#
        }
        "Conv2d" => {
            r#"{"in_channels": 4, "out_channels": 6, "kernel_size": [3, 5], "stride": [2, 1], "padding": [1, 2],
                "dilation": [1, 2], "groups": 2, "bias": false, "dtype": "float64"}"#
        }
        "ConvTranspose1d" => {
            r#"{"in_channels": 4, "out_channels": 6, "kernel_size": 3, "output_padding": 1, "stride": 2}"#
        }
        "DepthwiseConv2d" => r#"{"channels": 4, "kernel_size": 3, "padding": "same", "padding_mode": "circular"}"#,
        "ConvTranspose2d" => {
            r#"{"in_channels": 4, "out_channels": 6, "kernel_size": [3, 5], "stride": [2, 3], "pad": [1, 2],
                "output_padding": [1, 0], "groups": 2}"#
        }
        "Bilinear" => r#"{"in1_features": 2, "in2_features": 3, "out_features": 4, "bias": false}"#,
        "Threshold" => r#"{"threshold": 0.5, "value": -1}"#,
        "InstanceNorm1d" | "InstanceNorm2d" => r#"{"num_features": 3, "affine": true, "track_running_stats": true}"#,
        "BatchNorm1d" => r#"{"num_features": 3, "eps": 0.25, "momentum": null, "track_running_stats": true}"#,
        "BatchNorm2d" => r#"{"num_features": 3, "momentum": 0.5, "affine": false, "dtype": "float64"}"#,
        "LayerNorm" | "RMSNorm" => r#"{"normalized_shape": [4, 3], "elementwise_affine": false}"#,
        "GroupNorm" => r#"{"num_groups": 2, "num_channels": 4, "dtype": "float64"}"#,
        "EmbeddingBag" => r#"{"num_embeddings": 5, "embedding_dim": 3, "mode": "max"}"#,
        "Embedding" => r#"{"num_embeddings": 5, "embedding_dim": 3, "padding_idx": -1}"#,
        "LPPool1d" | "LPPool2d" => r#"{"norm_type": 2, "kernel_size": 3}"#,
        "MaxPool1d" => r#"{"kernel_size": 3, "stride": null, "ceil_mode": true}"#,
        "MaxPool2d" => r#"{"kernel_size": [3, 2], "stride": 1, "padding": 1, "dilation": [1, 2]}"#,
        "AvgPool2d" => r#"{"kernel_size": 3, "padding": 1, "count_include_pad": false, "divisor_override": 5}"#,
        "AdaptiveAvgPool2d" | "AdaptiveMaxPool2d" => r#"{"output_size": [null, 2]}"#,
        "Dropout" => r#"{"p": 0.25, "seed": 3}"#,
        "ConstantPad1d" => r#"{"padding": [1, -2], "value": 0.5}"#,
        "ConstantPad2d" => r#"{"padding": 1, "value": 2}"#,
        kind if kind.ends_with("Pad1d") || kind.ends_with("Pad2d") => r#"{"padding": 1}"#,
        "CausalSelfAttention" | "MultiheadAttention" => r#"{"embed_dim": 4, "num_heads": 2, "bias": false}"#,
        "RotaryAttention" | "DecoderBlock" => r#"{"dim": 4, "n_head": 2, "qk_norm": true}"#,
        "QuantizedLinear" => {
            r#"{"in_features": 40, "out_features": 2, "bits": 4, "group": 32, "bias": false, "dtype": "float64"}"#
        }
        "SwiGLU" => r#"{"dim": 4, "bias": true}"#,
        "FeedForward" => r#"{"dim": 4, "hidden": 8, "activation": "relu"}"#,
        "TransformerBlock" => r#"{"d_model": 4, "num_heads": 2, "dropout": 0.1}"#,
        "PositionalEmbedding" | "SinusoidalEmbedding" => r#"{"max_len": 5, "d_model": 4}"#,
        "TransformerEncoderLayer" | "TransformerDecoderLayer" => {
            r#"{"d_model": 4, "nhead": 2, "dim_feedforward": 8, "norm_first": true}"#
        }
        "TransformerEncoder" => {
            r#"{"encoder_layer": {"type": "TransformerEncoderLayer", "args": {"d_model": 4, "nhead": 2}}, "num_layers": 2}"#
        }
        "TransformerDecoder" => {
            r#"{"decoder_layer": {"type": "TransformerDecoderLayer", "args": {"d_model": 4, "nhead": 2}}, "num_layers": 2}"#
        }
        "GPT" => r#"{"vocab_size": 7, "block_size": 5, "n_layer": 1, "n_head": 2, "n_embd": 4}"#,
        "LSTM" | "GRU" => r#"{"input_size": 3, "hidden_size": 2, "num_layers": 2, "bidirectional": true}"#,
        "RNN" => r#"{"input_size": 3, "hidden_size": 2, "nonlinearity": "relu", "bias": false}"#,
        "LSTMCell" | "GRUCell" | "RNNCell" => r#"{"input_size": 3, "hidden_size": 2, "dtype": "float64"}"#,
        "ResNet" => r#"{"block": "BasicBlock", "layers": [1, 1, 1, 1], "base_channels": 2, "use_batchnorm": false}"#,
        "MobileNetV2" => r#"{"num_classes": 3, "width_mult": 0.25}"#,
        "VisionTransformer" => {
            r#"{"image_size": 8, "patch_size": 4, "num_layers": 1, "num_heads": 2, "hidden_dim": 4, "mlp_dim": 6}"#
        }
        // Of another test here.
        "Gate" => r#"{"width": 2}"#,
        "PixelShuffle" => r#"{"upscale_factor": 2}"#,
        "Unfold" => r#"{"kernel_size": 2}"#,
        "Fold" => r#"{"output_size": 4, "kernel_size": 2}"#,
        "PixelUnshuffle" => r#"{"downscale_factor": 2}"#,
        "Unflatten" => r#"{"dim": 1, "unflattened_size": [2, -1]}"#,
        "Upsample" => r#"{"scale_factor": [2, 1.5], "mode": "bilinear", "align_corners": null}"#,
        _ => "{}",
    }
}

#[test]
fn every_kind_can_be_made_and_written_down() {
    let kinds = layer_kinds();
    assert!(kinds.len() >= 38, "{kinds:?}");
    for kind in kinds {
        let json = format!(r#"[{{"type": "{kind}", "args": {}}}]"#, needed(kind));
        let model = build_sequential(&cpu(), &from_json(&json).unwrap()).unwrap();
        assert_eq!(model.get(0).unwrap().kind(), kind);
        let config = model.config().unwrap();
        let text = to_json(&config).unwrap();
        assert_eq!(from_json(&text).unwrap(), config, "{text}");
        let again = build_sequential(&cpu(), &config).unwrap();
        assert_eq!(again.to_string(), model.to_string());
        assert_eq!(again.config().unwrap(), config);
        let shapes = |model: &Sequential| -> Vec<_> {
            model.parameters().iter().map(|tensor| (tensor.shape().clone(), tensor.dtype())).collect()
        };
        assert_eq!(shapes(&again), shapes(&model), "{kind}");
    }
}

#[test]
fn settings_arrive_in_the_layer_and_come_back() {
    let model = sequential![
        LeakyReLU { negative_slope: 0.5 },
        ELU { alpha: 2.0 },
        Softplus { beta: 3.0, threshold: 4.0 },
        Hardtanh { min_val: -5.0, max_val: 6.0 },
        Softmax { axis: 0 },
        LogSoftmax { axis: 1 },
        Flatten { start: 2, end: 3 },
        Hooked::new(Linear::new(&cpu(), 2, 3).unwrap()),
        Box::new(ReLU) as Box<dyn Module>,
    ];
    let config = model.config().unwrap();
    assert_eq!(build_sequential(&cpu(), &config).unwrap().to_string(), model.to_string());
    let text = serde_json::to_string(&config[6..]).unwrap();
    let expected = r#"[{"type":"Flatten","args":{"end_dim":3,"start_dim":2}},{"type":"Linear","args":{"bias":true,"in_features":2,"out_features":3}},{"type":"ReLU"}]"#;
    assert_eq!(text, expected);
    assert_eq!(layer_config(&Mish).unwrap(), LayerConfig { kind: "Mish".to_owned(), settings: Default::default() });
}

/// The published package's `example_cnn_config`, and what its settings do.
#[test]
fn the_published_package_s_convolutional_network_is_made() {
    let config = from_json(
        r#"[{"type": "Conv2d", "args": {"in_channels": 3, "out_channels": 4, "kernel_size": 3, "stride": 1, "pad": 1}},
            {"type": "BatchNorm2d", "args": {"num_features": 4}}, {"type": "ReLU"},
            {"type": "MaxPool2d", "args": {"kernel_size": 2, "stride": 2}}, {"type": "Flatten"},
            {"type": "Dropout", "args": {"p": 0.3}},
            {"type": "Linear", "args": {"in_features": 64, "out_features": 10}}]"#,
    );
    let mut model = build_sequential(&cpu(), &config.unwrap()).unwrap();
    model.eval();
    let images = Tensor::from_host(&cpu(), &[0.5f32; 2 * 3 * 64], [2, 3, 8, 8]).unwrap();
    assert_eq!(model.forward(&images).unwrap().shape()[..], [2, 10]);
    let text = error(r#"[{"type": "MaxPool2d", "args": {"kernel_size": [1, 2, 3]}}]"#);
    assert!(text.contains("kernel_size is a whole number or 2 of them, not (1, 2, 3)"), "{text}");
    let text = error(r#"[{"type": "MaxPool2d", "args": {"stride": "two"}}]"#);
    assert!(text.contains("stride is a whole number or 2 of them or None, not 'two'"), "{text}");
    let text =
        error(r#"[{"type": "Conv2d", "args": {"in_channels": 3, "out_channels": 4, "kernel_size": 1, "groups": 2}}]"#);
    assert!(text.contains("layer 0 (Conv2d): groups=2 must divide in_channels=3 and out_channels=4"), "{text}");
}

#[test]
fn a_list_of_layers_stands_for_a_sequence() {
    let config = from_json(
        r#"[{"type": "Residual", "args": {"inner": [{"type": "Tanh"}, {"type": "ReLU"}], "activation": [{"type": "Mish"}]}}]"#,
    );
    let model = build_sequential(&cpu(), &config.unwrap()).unwrap();
    let names: Vec<_> = model.named_modules().into_iter().map(|(name, module)| (name, module.kind())).collect();
    let expected = [("0.inner", "Sequential"), ("0.inner.0", "Tanh"), ("0.inner.1", "ReLU"), ("0.activation", "Mish")];
    assert_eq!(names[2..].iter().map(|(name, kind)| (name.as_str(), *kind)).collect::<Vec<_>>(), expected);
}

#[test]
fn other_spellings_of_the_format_are_read() {
    let spellings =
        [r#"[{"type": "ReLU"}]"#, r#"[{"type": "ReLU", "args": null}]"#, r#"[{"kind": "ReLU", "settings": {}}]"#];
    for json in spellings {
        assert_eq!(
            build_sequential(&cpu(), &from_json(json).unwrap()).unwrap().to_string(),
            "Sequential(\n  (0): ReLU()\n)"
        );
    }
    let config = from_json(r#"{"type": "Tanh"}"#).unwrap_err().to_string();
    assert!(config.contains("no list of") && config.contains("line 1 column"), "{config}");
    let tanh = LayerConfig { kind: "Tanh".to_owned(), settings: Default::default() };
    assert!(build_layer(&cpu(), &tanh).unwrap().is::<Tanh>());
}

#[test]
fn errors_name_the_layer_and_what_is_wrong_with_it() {
    let text = error(r#"[{"type": "ReLU"}, {"type": "Linaer"}]"#);
    assert!(
        text.starts_with("build_sequential: layer 1 has the unknown type \"Linaer\"; there are AdaptiveAvgPool1d, "),
        "{text}"
    );
    assert!(text.contains("Linear, ") && text.contains("register_layer"), "{text}");
    let text = error(r#"[{"type": "Linear", "args": {"in_features": 3}}]"#);
    assert_eq!(text, "build_sequential: layer 0 (Linear): out_features is missing");
    let text = error(r#"[{"type": "Linear", "args": {"in_features": 3, "out_features": 2, "biass": true}}]"#);
    assert!(
        text.contains("layer 0 (Linear): ") && text.contains("there is no setting \"biass\"; there are in_features"),
        "{text}"
    );
    let text = error(r#"[{"type": "Linear", "args": {"in_features": -3, "out_features": 2}}]"#);
    assert!(text.contains("in_features is -3; it must be at least 0"), "{text}");
    let text = error(r#"[{"type": "Linear", "args": {"in_features": 3, "out_features": 2, "dtype": "int8"}}]"#);
    assert!(text.contains("unsupported dtype \"int8\""), "{text}");
    let text = error(r#"[{"type": "ReLU", "args": {"slope": 1}}]"#);
    assert!(
        text.contains("layer 0 (ReLU): ") && text.contains("there is no setting \"slope\"; there are none"),
        "{text}"
    );
    let text = error(r#"[{"type": "ReLU", "arg": {}}]"#);
    assert!(text.contains("unknown field `arg`"), "{text}");
    // Inside other layers, too.
    let text = error(
        r#"[{"type": "Sequential", "args": {"layers": [{"type": "Tanh"}, {"type": "Residual", "args": {"inner": {"type": "Linear"}}}]}}]"#,
    );
    assert_eq!(text, "build_sequential: layer 0.1.inner (Linear): in_features is missing");
    let text = error(r#"[{"type": "Residual", "args": {"inner": {"args": {}}}}]"#);
    assert!(text.contains("layer 0 (Residual): inner is {'args': {}}: missing field `type`"), "{text}");

    let text = sequential![ReLU, Residual::new(Lambda::new("f", |x| Ok(x.clone())))].config().unwrap_err().to_string();
    assert!(text.contains("Lambda has no settings to write down"), "{text}");
}

// ---- a user's layer -----------------------------------------------------------------------------------------------

#[derive(Module)]
struct Gate {
    linear: Linear,
}

impl Gate {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        functional::mul(input, &functional::sigmoid(&self.linear.forward(input)?)?)
    }
}

#[derive(Clone, Settings)]
struct GateSettings {
    #[setting(alias = "features")]
    width: usize,
}

impl Configured for Gate {
    const KIND: &'static str = "Gate";
    type Settings = GateSettings;
    fn options(&self) -> Result<GateSettings> {
        Ok(GateSettings { width: self.linear.in_features() })
    }
    fn build(build: &mut Build<'_>, settings: GateSettings) -> Result<Gate> {
        if settings.width > 100 {
            let what = format!("a width of {} is too much", settings.width);
            return Err(netcl_nn::autograd::Error::argument("Gate", what));
        }
        Ok(Gate { linear: Linear::new(build.queue(), settings.width, settings.width)? })
    }
}

/// Another layer that wants a name of this crate's.
#[derive(Module)]
#[module(no_forward)]
struct Impostor;

impl Configured for Impostor {
    const KIND: &'static str = "Linear";
    type Settings = GateSettings;
    fn options(&self) -> Result<GateSettings> {
        Ok(GateSettings { width: 0 })
    }
    fn build(_build: &mut Build<'_>, _settings: GateSettings) -> Result<Impostor> {
        Ok(Impostor)
    }
}

#[test]
fn a_registered_layer_is_one_like_the_others() {
    let gate = sequential![Gate { linear: Linear::new(&cpu(), 2, 2).unwrap() }];
    assert!(gate.config().unwrap_err().to_string().contains("Gate has no settings"));
    register_layer::<Gate>().unwrap();
    register_layer::<Gate>().unwrap();
    assert!(layer_kinds().contains(&"Gate") && layer_kinds().is_sorted());
    let config = gate.config().unwrap();
    assert_eq!(serde_json::to_string(&config).unwrap(), r#"[{"type":"Gate","args":{"width":2}}]"#);
    let same = build_sequential(&cpu(), &from_json(r#"[{"type": "Gate", "args": {"features": 2}}]"#).unwrap()).unwrap();
    same.load_state_dict(&gate.state_dict(), Strict::Yes).unwrap();
    let x = Tensor::from_host(&cpu(), &[1.0f32, -2.0], [1, 2]).unwrap();
    let (a, b) = (same.forward(&x).unwrap(), gate.forward(&x).unwrap());
    assert_eq!(a.to_host::<f32>().unwrap(), b.to_host::<f32>().unwrap());
    // What a layer itself refuses comes with its place.
    let text = error(r#"[{"type": "Residual", "args": {"inner": {"type": "Gate", "args": {"width": 101}}}}]"#);
    assert_eq!(text, "build_sequential: layer 0.inner (Gate): a width of 101 is too much");

    let text = register_layer::<Impostor>().unwrap_err().to_string();
    assert!(text.contains("another layer is called \"Linear\""), "{text}");
}
