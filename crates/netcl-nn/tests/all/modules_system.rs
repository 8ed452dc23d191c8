//! State, freezing, applying, summaries, hooks and containers.

use std::sync::{Arc, Mutex};

use netcl_nn::autograd::{DType, Error, Generator, Result, Tensor};
use netcl_nn::state::Misshapen;
use netcl_nn::{functional as F, *};
use netcl_optim::{Optimizer, SGD};

use crate::golden::{cpu, devices};

fn linear_of(dtype: DType, inputs: usize, outputs: usize, seed: u64) -> Linear {
    let mut generator = Generator::new(seed);
    let build = Build::on(&cpu()).dtype(dtype).generator(&mut generator);
    Linear::new_with(build, LinearOptions::new(inputs, outputs)).unwrap()
}

fn linear(inputs: usize, outputs: usize, seed: u64) -> Linear {
    linear_of(DType::F32, inputs, outputs, seed)
}

fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_host(&cpu(), values, [values.len()]).unwrap()
}

fn values(module: &dyn Module) -> Vec<Vec<f64>> {
    module.state_dict().into_iter().map(|(_, tensor)| tensor.to_f64_vec().unwrap()).collect()
}

fn mismatch(error: &Error) -> &StateMismatch {
    let Error::Custom(custom) = error else { panic!("{error}") };
    custom.downcast_ref().unwrap()
}

// ---- state -----------------------------------------------------------------------------------------------------

#[test]
fn a_state_dict_keeps_its_order() {
    let mut state: StateDict = [("b", 1.0), ("a", 2.0), ("c", 3.0)]
        .map(|(name, value)| (name.to_owned(), tensor(&[value])))
        .into_iter()
        .collect();
    assert_eq!(state.names().collect::<Vec<_>>(), ["b", "a", "c"]);
    assert_eq!(state.insert("a", tensor(&[9.0])).unwrap().item().unwrap(), 2.0);
    assert_eq!(state.remove("b").unwrap().item().unwrap(), 1.0);
    assert!(state.remove("b").is_none() && state.get("b").is_none());
    assert_eq!(state.get("c").unwrap().item().unwrap(), 3.0);
    assert_eq!((state.len(), state.is_empty()), (2, false));
    assert!(state.insert("b", tensor(&[4.0])).is_none());
    assert_eq!(state.names().collect::<Vec<_>>(), ["a", "c", "b"]);
}

#[test]
fn a_snapshot_is_not_changed_by_training_and_a_state_dict_is() {
    let model = linear(2, 2, 1);
    let (live, copy) = (model.state_dict(), model.state_dict().snapshot().unwrap());
    let before = copy.get("weight").unwrap().to_host::<f32>().unwrap();
    model.weight().fill(5.0).unwrap();
    assert_eq!(live.get("weight").unwrap().to_host::<f32>().unwrap(), [5.0; 4]);
    assert_eq!(copy.get("weight").unwrap().to_host::<f32>().unwrap(), before);
    assert!(!live.get("weight").unwrap().requires_grad());
}

#[test]
fn strict_loading_lists_everything_that_is_wrong_and_changes_nothing() {
    let model = sequential![linear(2, 3, 1), ReLU, linear(3, 1, 2)];
    let before = values(&model);
    let mut state = sequential![linear(2, 3, 3), ReLU, linear(3, 1, 4)].state_dict();
    state.remove("0.bias");
    state.remove("2.bias");
    state.insert("2.weight", tensor(&[1.0, 2.0]));
    state.insert("3.weight", tensor(&[1.0]));
    state.insert("head", tensor(&[1.0]));
    let error = model.load_state_dict(&state, Strict::Yes).unwrap_err();
    let expected = "load_state_dict: the state does not fit Sequential, and nothing was loaded; missing: 0.bias, 2.bias; \
                    unexpected: 3.weight, head; of another shape: 2.weight is (2,) and should be (1, 3)";
    assert_eq!(error.to_string(), expected);
    let found = mismatch(&error);
    assert_eq!(found.missing, ["0.bias", "2.bias"]);
    assert_eq!(found.unexpected, ["3.weight", "head"]);
    let wrong = Misshapen { name: "2.weight".to_owned(), expected: [1, 3].into(), got: [2].into() };
    assert_eq!(found.misshapen, [wrong]);
    assert_eq!(values(&model), before);

    // A wrong shape is an error in any case: there is no value to load.
    let error = model.load_state_dict(&state, Strict::No).unwrap_err();
    assert_eq!(mismatch(&error).misshapen.len(), 1);
    assert_eq!(values(&model), before);
}

#[test]
fn loading_what_fits_tells_what_did_not() {
    let (model, other) = (linear(2, 3, 1), linear(2, 3, 2));
    let bias = model.bias().unwrap().to_host::<f32>().unwrap();
    let mut state = other.state_dict();
    state.remove("bias");
    state.insert("extra", tensor(&[1.0]));
    let error = model.load_state_dict(&state, Strict::Yes).unwrap_err().to_string();
    assert!(error.contains("Strict::No"), "{error}");
    let report = model.load_state_dict(&state, Strict::No).unwrap();
    assert_eq!(
        (report.missing.as_slice(), report.unexpected.as_slice()),
        (&["bias".to_owned()][..], &["extra".to_owned()][..])
    );
    assert_eq!(model.weight().to_host::<f32>().unwrap(), other.weight().to_host::<f32>().unwrap());
    assert_eq!(model.bias().unwrap().to_host::<f32>().unwrap(), bias);
    assert!(model.load_state_dict(&other.state_dict(), Strict::Yes).unwrap().is_complete());
}

#[test]
fn values_are_cast_moved_and_copied_into_the_tensors_an_optimizer_holds() {
    for device in devices() {
        let source = linear_of(DType::F64, 2, 3, 7);
        let mut model = linear(2, 3, 1);
        model.to(&device.queue).unwrap();
        let weight = model.weight().clone();
        let mut optimizer = SGD::new(model.parameters(), 0.5).unwrap();
        model.load_state_dict(&source.state_dict(), Strict::Yes).unwrap();
        assert!(weight.shares_storage(model.weight()) && weight.is_leaf() && weight.requires_grad());
        assert_eq!(weight.dtype(), DType::F32);
        let expected: Vec<f32> = source.weight().to_host::<f64>().unwrap().iter().map(|&x| x as f32).collect();
        assert_eq!(weight.to_host::<f32>().unwrap(), expected, "{}", device.device_name);
        // The source is a copy's source, not the parameter itself.
        assert!(!source.weight().shares_storage(&weight));

        F::sum(&weight, (), false).unwrap().backward().unwrap();
        optimizer.step().unwrap();
        let stepped: Vec<f32> = expected.iter().map(|x| x - 0.5).collect();
        assert_eq!(model.weight().to_host::<f32>().unwrap(), stepped);
    }
}

#[test]
fn a_model_s_own_tensors_can_be_loaded_in_other_places() {
    let model = sequential![linear(2, 2, 1), linear(2, 2, 2)];
    let before = model.state_dict().snapshot().unwrap();
    let exchanged = ["1.weight", "1.bias", "0.weight", "0.bias"].into_iter().map(str::to_owned);
    let state: StateDict = exchanged.zip(model.state_dict()).map(|(name, (_, tensor))| (name, tensor)).collect();
    model.load_state_dict(&state, Strict::Yes).unwrap();
    for (a, b) in [("0.weight", "1.weight"), ("1.weight", "0.weight"), ("0.bias", "1.bias"), ("1.bias", "0.bias")] {
        let (now, then) = (model.state_dict(), before.get(b).unwrap().to_host::<f32>().unwrap());
        assert_eq!(now.get(a).unwrap().to_host::<f32>().unwrap(), then, "{a}");
    }
    let now = values(&model);
    model.load_state_dict(&model.state_dict(), Strict::Yes).unwrap();
    assert_eq!(values(&model), now);
}

// ---- freezing, applying, summaries ----------------------------------------------------------------------------------

#[test]
fn a_frozen_part_is_not_trained() {
    let model = sequential![linear(2, 2, 1), linear(2, 2, 2)];
    let trained = |model: &Sequential| model.parameters().iter().map(Tensor::requires_grad).collect::<Vec<_>>();
    assert_eq!(model.freeze_named("0").unwrap(), 2);
    assert_eq!(trained(&model), [false, false, true, true]);
    let before = values(&model);
    let mut optimizer = SGD::new(model.parameters(), 0.1).unwrap();
    let x = Tensor::from_host(&cpu(), &[1.0f32, -2.0], [1, 2]).unwrap();
    F::sum(&model.forward(&x).unwrap(), (), false).unwrap().backward().unwrap();
    optimizer.step().unwrap();
    let after = values(&model);
    assert_eq!(after[..2], before[..2]);
    assert!(after[2] != before[2] && after[3] != before[3]);

    model.freeze().unwrap();
    assert_eq!(trained(&model), [false; 4]);
    assert_eq!(model.unfreeze_named("1.bias").unwrap(), 1);
    assert_eq!(trained(&model), [false, false, false, true]);
    model.unfreeze().unwrap();
    assert_eq!(trained(&model), [true; 4]);
    // Whole parts of names only, and a name that is none is an error with those there are.
    let wide = Sequential::new((0..11).map(|_| Box::new(linear(1, 1, 0)) as Box<dyn Module>).collect());
    assert_eq!(wide.freeze_named("1").unwrap(), 2);
    let error = model.freeze_named("2").unwrap_err().to_string();
    assert!(error.contains("\"2\"") && error.contains("there are 0.weight, 0.bias, 1.weight, 1.bias"), "{error}");
}

#[test]
fn apply_reaches_every_module_and_tells_what_it_is() {
    let hooked = Hooked::new(Box::new(linear(2, 2, 1)) as Box<dyn Module>);
    let boxed: Box<dyn Module> = Box::new(linear(2, 2, 2));
    let mut model =
        Residual::new(sequential![hooked, ReLU, boxed, Hooked::new(linear(2, 2, 3)), Box::new(linear(2, 2, 4))]);
    let mut names = Vec::new();
    model
        .apply(&mut |name, module| {
            names.push((name.to_owned(), module.kind()));
            if let Some(layer) = module.downcast_mut::<Linear>() {
                layer.bias().unwrap().fill(3.0)?;
            }
            Ok(())
        })
        .unwrap();
    let expected = ["inner.0", "inner.1", "inner.2", "inner.3", "inner.4", "inner", ""];
    assert_eq!(names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), expected);
    assert_eq!((names[0].1, names[1].1, names[6].1), ("Linear", "ReLU", "Residual"));
    let biases = model.named_parameters().into_iter().filter(|(name, _)| name.ends_with("bias"));
    let biases: Vec<f32> = biases.flat_map(|(_, tensor)| tensor.to_host::<f32>().unwrap()).collect();
    assert_eq!(biases, [3.0; 8]);
    assert_eq!(model.named_modules().iter().filter(|(_, module)| module.is::<Linear>()).count(), 4);

    // The first error ends it; `dyn Module` has the same method.
    let mut calls = 0;
    let outcome = (&mut model as &mut dyn Module).apply(&mut |name, _| {
        calls += 1;
        if name == "inner.1" { Err(Error::Custom("enough".into())) } else { Ok(()) }
    });
    assert_eq!((outcome.unwrap_err().to_string().as_str(), calls), ("enough", 2));
}

#[test]
fn a_summary_counts_per_layer_and_in_total() {
    #[derive(Module)]
    #[module(no_forward)]
    struct Net {
        encoder: Sequential,
        decoder: Linear,
        #[module(buffer)]
        seen: Tensor,
    }

    let first = linear(40, 30, 1);
    let decoder = Linear::from_parameters(first.weight().clone(), None).unwrap();
    let net = Net { encoder: sequential![first, ReLU, linear(30, 2, 2)], decoder, seen: tensor(&[0.0; 7]) };
    net.freeze_named("encoder.2").unwrap();
    let expected = "\
Net(                                                                1,292
  (encoder): Sequential(                                            1,292
    (0): Linear(in_features=40, out_features=30, bias=True)         1,230
    (1): ReLU()
    (2): Linear(in_features=30, out_features=2, bias=True)             62
  )
  (decoder): Linear(in_features=40, out_features=30, bias=False)    1,200
)
1,292 parameters (1,230 trained, 62 frozen); 7 in buffers; 5.1 KiB
decoder.weight is encoder.0.weight";
    let got = net.summary();
    // The width of the first column follows from the longest line.
    let squeezed =
        |text: &str| text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>();
    assert_eq!(squeezed(&got.to_string()), squeezed(expected));
    let text = got.to_string();
    let ends: Vec<usize> = text.lines().filter(|line| line.contains("(in_features")).map(str::len).collect();
    assert!(ends.iter().all(|end| *end == ends[0]), "the counts stand below each other:\n{text}");
    assert_eq!((got.parameters, got.trainable, got.buffers, got.bytes), (1292, 1230, 7, 4 * 1299));
}

// ---- hooks and containers -----------------------------------------------------------------------------------------

#[test]
fn hooks_see_replace_and_go() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let log = log.clone();
        move |value: f64| log.lock().unwrap().push((name, value))
    };
    let layer = Hooked::new(Lambda::new("double", |x| F::mul(x, 2.0)));
    let (first, second, before) = (note("first"), note("second"), note("before"));
    let replacing = layer.on_forward(move |input, output| {
        first(output.item()?);
        Ok(Some(F::add(output, input)?))
    });
    let seeing = layer.on_forward(move |_, output| {
        second(output.item()?);
        Ok(None)
    });
    let earlier = layer.before_forward(move |input| {
        before(input.item()?);
        Ok(Some(F::add(input, 1.0)?))
    });
    let x = tensor(&[10.0]);
    assert_eq!(layer.forward(&x).unwrap().item().unwrap(), 33.0);
    assert_eq!(*log.lock().unwrap(), [("before", 10.0), ("first", 22.0), ("second", 33.0)]);
    replacing.remove();
    replacing.remove();
    assert_eq!(layer.forward(&x).unwrap().item().unwrap(), 22.0);
    earlier.remove();
    seeing.remove();
    log.lock().unwrap().clear();
    assert_eq!(layer.forward(&x).unwrap().item().unwrap(), 20.0);
    assert!(log.lock().unwrap().is_empty());

    // A hook that takes itself away while it runs, and one that fails.
    let own: Arc<Mutex<Option<ForwardHook>>> = Arc::default();
    let inside = own.clone();
    *own.lock().unwrap() = Some(layer.on_forward(move |_, _| {
        inside.lock().unwrap().take().unwrap().remove();
        Ok(None)
    }));
    assert!(layer.forward(&x).is_ok() && layer.forward(&x).is_ok());
    let failing = layer.on_forward(|_, _| Err(Error::Custom("seen".into())));
    assert_eq!(layer.forward(&x).unwrap_err().to_string(), "seen");
    drop(layer);
    failing.remove();
}

#[test]
fn a_hooked_layer_of_a_sequence_keeps_its_name_and_its_gradient() {
    let mut model = sequential![linear(2, 3, 1), ReLU];
    let x = Tensor::from_host(&cpu(), &[1.0f32, -2.0], [1, 2]).unwrap();
    let plain = model.forward(&x).unwrap().to_host::<f32>().unwrap();
    let (text, state) = (model.to_string(), format!("{:?}", model.state_dict()));
    let seen: Arc<Mutex<Vec<Tensor>>> = Arc::default();
    let handles: Vec<ForwardHook> = (0..2)
        .map(|_| {
            let seen = seen.clone();
            model.hook(0, move |_, output| {
                seen.lock().unwrap().push(output.clone());
                Ok(None)
            })
        })
        .collect::<Result<_>>()
        .unwrap();
    assert_eq!((model.to_string(), format!("{:?}", model.state_dict())), (text, state));
    let y = model.forward(&x).unwrap();
    assert_eq!(y.to_host::<f32>().unwrap(), plain);
    F::sum(&y, (), false).unwrap().backward().unwrap();
    assert!(model.parameters().iter().all(|parameter| parameter.grad().is_some()));
    assert_eq!(seen.lock().unwrap().len(), 2);
    handles.iter().for_each(ForwardHook::remove);
    model.forward(&x).unwrap();
    assert_eq!(seen.lock().unwrap().len(), 2);
    let error = model.hook(2, |_, _| Ok(None)).unwrap_err().to_string();
    assert!(error.contains("no module 2 among 2"), "{error}");
}

#[test]
fn a_residual_is_the_sum_of_its_two_ways() {
    let x = Tensor::from_host(&cpu(), &[1.0f32, -2.0, 0.5, 3.0], [2, 2]).unwrap();
    let (inner, shortcut) = (linear(2, 3, 1), linear(2, 3, 2));
    let sum = F::add(&inner.forward(&x).unwrap(), &shortcut.forward(&x).unwrap()).unwrap();
    let block = Residual::new(inner).with_shortcut(shortcut).with_activation(ReLU);
    let got = block.forward(&x).unwrap().to_host::<f32>().unwrap();
    assert_eq!(got, F::relu(&sum).unwrap().to_host::<f32>().unwrap());
    assert!(got.contains(&0.0) && got.iter().any(|&y| y > 0.0), "the activation does something: {got:?}");
    let names: Vec<String> = block.state_dict().names().map(str::to_owned).collect();
    assert_eq!(names, ["inner.weight", "inner.bias", "shortcut.weight", "shortcut.bias"]);

    let plain = Residual::new(linear(2, 2, 3));
    let expected = F::add(&plain.inner().forward(&x).unwrap(), &x).unwrap().to_host::<f32>().unwrap();
    assert_eq!(plain.forward(&x).unwrap().to_host::<f32>().unwrap(), expected);
}

#[test]
fn a_module_list_is_called_by_its_owner() {
    let mut list = ModuleList::new(vec![Box::new(linear(2, 3, 1))]);
    list.push(ReLU);
    assert_eq!((list.len(), list.is_empty()), (2, false));
    assert!(list.get(1).unwrap().is::<ReLU>() && list.get(2).is_none());
    list.get_mut(0).unwrap().downcast_mut::<Linear>().unwrap().cast(DType::F64).unwrap();
    assert_eq!(list.parameters()[0].dtype(), DType::F64);
    assert_eq!(list.iter().rev().map(|module| module.kind()).collect::<Vec<_>>(), ["ReLU", "Linear"]);
    let error = list.forward(&tensor(&[1.0])).unwrap_err().to_string();
    assert!(error.contains("ModuleList is no function of one tensor"), "{error}");
}
