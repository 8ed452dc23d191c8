//! Networks from data and back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

use netcl_nn::autograd::core::ErrorKind;
use netcl_nn::autograd::core::backend::Queue;
use netcl_nn::autograd::core::device::manager;
use netcl_nn::autograd::{Result, Tensor};
use netcl_nn::config::{from_json, layer_kinds, to_json};
use netcl_nn::*;
use serde::{Deserialize, Serialize};

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
        _ => "{}",
    }
}

#[test]
fn every_kind_can_be_made_and_written_down() {
    let kinds = layer_kinds();
    assert!(kinds.len() >= 24, "{kinds:?}");
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
    assert!(text.starts_with("build_sequential: layer 1 has the unknown type \"Linaer\"; there are ELU, "), "{text}");
    assert!(text.contains("Linear, ") && text.contains("register_layer"), "{text}");
    let text = error(r#"[{"type": "Linear", "args": {"in_features": 3}}]"#);
    assert_eq!(text, "build_sequential: layer 0 (Linear): missing field `out_features`");
    let text = error(r#"[{"type": "Linear", "args": {"in_features": 3, "out_features": 2, "biass": true}}]"#);
    assert!(
        text.contains("layer 0 (Linear): ") && text.contains("unknown field `biass`, expected one of `in_features`"),
        "{text}"
    );
    let text = error(r#"[{"type": "Linear", "args": {"in_features": -3, "out_features": 2}}]"#);
    assert!(text.contains("in_features: invalid value: integer `-3`, expected usize"), "{text}");
    let text = error(r#"[{"type": "Linear", "args": {"in_features": 3, "out_features": 2, "dtype": "int8"}}]"#);
    assert!(text.contains("dtype: unsupported dtype \"int8\""), "{text}");
    let text = error(r#"[{"type": "ReLU", "args": {"slope": 1}}]"#);
    assert!(text.contains("layer 0 (ReLU): ") && text.contains("unknown field `slope`"), "{text}");
    let text = error(r#"[{"type": "ReLU", "arg": {}}]"#);
    assert!(text.contains("unknown field `arg`"), "{text}");
    // Inside other layers, too.
    let text = error(
        r#"[{"type": "Sequential", "args": {"layers": [{"type": "Tanh"}, {"type": "Residual", "args": {"inner": {"type": "Linear"}}}]}}]"#,
    );
    assert_eq!(text, "build_sequential: layer 0.1.inner (Linear): missing field `in_features`");
    let text = error(r#"[{"type": "Residual", "args": {"inner": {"args": {}}}}]"#);
    assert!(text.contains("layer 0 (Residual): inner: missing field `type`"), "{text}");

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

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GateSettings {
    #[serde(alias = "features")]
    width: usize,
}

impl Configured for Gate {
    const KIND: &'static str = "Gate";
    type Settings = GateSettings;
    fn settings(&self) -> Result<GateSettings> {
        Ok(GateSettings { width: self.linear.in_features() })
    }
    fn build(settings: GateSettings, build: &Build<'_>) -> Result<Gate> {
        if settings.width > 100 {
            let what = format!("a width of {} is too much", settings.width);
            return Err(netcl_nn::autograd::core::Error::argument("Gate", what).into());
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
    fn settings(&self) -> Result<GateSettings> {
        Ok(GateSettings { width: 0 })
    }
    fn build(_settings: GateSettings, _build: &Build<'_>) -> Result<Impostor> {
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
    assert_eq!(text, "build_sequential: layer 0.inner (Gate): Gate: a width of 101 is too much");

    let text = register_layer::<Impostor>().unwrap_err().to_string();
    assert!(text.contains("another layer is called \"Linear\""), "{text}");
}
