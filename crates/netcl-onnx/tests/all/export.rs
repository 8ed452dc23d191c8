//! Modules written as files and read again: equal results, at another batch, under the same names.

use std::path::Path;

use netcl_nn::autograd::{DType, IndexTensor, Queue, Slice, Tensor, manager, no_grad};
use netcl_nn::*;
use netcl_onnx::{DynamicAxis, Error, OnnxModule, SaveOptions, load, proto, save, save_with, wire};

fn cpu() -> Queue {
    manager().cpu().queue
}

/// Numbers between -2 and 2 without a pattern.
fn numbers(shape: &[usize]) -> Tensor {
    let values: Vec<f32> =
        (0..shape.iter().product()).map(|i: usize| ((i * 37 + 11) % 101) as f32 / 25.0 - 2.0).collect();
    Tensor::from_host(&cpu(), &values, shape).unwrap()
}

fn near(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    for (got, expected) in got.to_f64_vec().unwrap().iter().zip(expected.to_f64_vec().unwrap()) {
        assert!(
            (got - expected).abs() <= 1e-5 * expected.abs().max(1.0)
                || got == &expected
                || (got.is_nan() && expected.is_nan()),
            "{what}: {got} instead of {expected}"
        );
    }
}

fn written(module: &dyn Module, example: &Tensor, folder: &Path) -> OnnxModule {
    let path = folder.join("model.onnx");
    save(&path, module, example).unwrap();
    load(&path, &cpu()).unwrap()
}

/// Writes, reads and compares, for the example's batch and for others.
fn same(what: &str, mut module: impl Module, shape: &[usize]) -> OnnxModule {
    module.eval();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    save(&path, &module, &numbers(shape)).unwrap_or_else(|error| panic!("{what}: {error}"));
    let again = load(&path, &cpu()).unwrap();
    let _scope = no_grad();
    for batch in [1, shape[0], 5] {
        let x = numbers(&[&[batch], &shape[1..]].concat());
        near(&again.forward(&x).unwrap(), &module.forward(&x).unwrap(), what);
    }
    let names = |module: &dyn Module| {
        let mut names: Vec<String> = module.named_parameters().into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    };
    assert_eq!(names(&again), names(&module), "{what}");
    again
}

fn of(f: impl Fn(&Tensor) -> netcl_nn::autograd::Result<Tensor> + Send + Sync + 'static) -> Lambda {
    Lambda::new("f", f)
}

#[test]
fn perceptrons_and_convolutions() {
    let q = &cpu();
    let mlp =
        sequential![Linear::new(q, 6, 8).unwrap(), ReLU, Dropout::new(0.5).unwrap(), Linear::new(q, 8, 3).unwrap()];
    same("mlp", mlp, &[3, 6]);
    same("linear of sequences", Linear::new(q, 6, 8).unwrap(), &[2, 5, 6]);
    let cnn = sequential![
        Conv2d::new(q, 3, 8, 3).unwrap().padding(1),
        BatchNorm2d::new(q, 8).unwrap(),
        ReLU,
        MaxPool2d::new(2),
        Conv2d::new(q, 8, 8, 3).unwrap().stride(2),
        GELU::default(),
        AdaptiveAvgPool2d::new(1),
        Flatten::default(),
        Linear::new(q, 8, 4).unwrap(),
    ];
    same("cnn", cnn, &[2, 3, 12, 12]);
    same("conv1d", sequential![Conv1d::new(q, 3, 4, 3).unwrap(), Tanh, AvgPool1d::new(2)], &[2, 3, 12]);
    same("transposed", ConvTranspose2d::new(q, 3, 4, 3).unwrap().stride(2), &[2, 3, 5, 5]);
    same("upsample", Upsample::nearest(2.0), &[2, 3, 4, 4]);
    same("group norm", GroupNorm::new(q, 2, 6).unwrap(), &[2, 6, 4, 4]);
    same("instance norm", InstanceNorm2d::new(q, 6).unwrap(), &[2, 6, 4, 4]);
    same("pixel shuffle", PixelShuffle::new(2), &[2, 8, 3, 3]);
}

#[test]
fn a_resnet_18() {
    let options = ResNetOptions { base_channels: 8, ..ResNetOptions::of(Depth::D18) };
    let model = ResNet::new_with(&cpu(), options).unwrap();
    let count = model.named_parameters().len();
    assert_eq!(same("resnet", model, &[2, 3, 32, 32]).named_parameters().len(), count);
}

#[test]
fn recurrent_networks() {
    let q = &cpu();
    let options = RecurrentOptions { num_layers: 2, bidirectional: true, ..RecurrentOptions::new(3, 4) };
    let again = same("lstm", LSTM::new_with(q, options.clone()).unwrap(), &[2, 6, 3]);
    assert!(again.to_string().contains("LSTM=4") && !again.to_string().contains("MatMul"), "{again}");
    same("gru", GRU::new_with(q, options).unwrap(), &[2, 6, 3]);
    same("rnn", RNN::new(q, 3, 4).unwrap(), &[2, 6, 3]);
    let relu = RNNOptions { nonlinearity: Nonlinearity::Relu, bias: false, ..RNNOptions::new(3, 4) };
    same("rnn with relu", RNN::new_with(q, relu).unwrap(), &[2, 6, 3]);
    same("lstm cell", LSTMCell::new(q, 3, 4).unwrap(), &[2, 3]);
}

#[test]
fn an_lstm_with_states_in_and_out() {
    let lstm = LSTM::new(&cpu(), 3, 4).unwrap();
    let inputs = [numbers(&[2, 6, 3]), numbers(&[1, 6, 4]), numbers(&[1, 6, 4])];
    let run = |t: &[Tensor]| {
        let (out, (hidden, memory)) = lstm.run(&t[0], Some((&t[1], &t[2])))?;
        Ok(vec![out, hidden, memory])
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let names = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
    let options = SaveOptions {
        input_names: names(&["x", "h0", "c0"]),
        output_names: names(&["y", "h", "c"]),
        dynamic_batch: false,
        ..Default::default()
    };
    let mut eval = LSTM::new(&cpu(), 3, 4).unwrap();
    eval.load_state_dict(&lstm.state_dict(), Strict::Yes).unwrap();
    eval.eval();
    save_with(&path, &eval, &inputs, &options, &run).unwrap();
    let again = load(&path, &cpu()).unwrap();
    assert_eq!(again.inputs().iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["x", "h0", "c0"]);
    let results = again.run(inputs.iter().map(|t| t.clone().into()).collect()).unwrap();
    for (got, expected) in results.iter().zip(run(&inputs).unwrap()) {
        near(&got.to_tensor(&cpu()).unwrap(), &expected, "lstm");
    }
}

#[test]
fn transformers() {
    let q = &cpu();
    let mut gpt = GPT::new_with(q, GPTOptions { n_layer: 2, n_embd: 16, ..GPTOptions::new(11, 8) }).unwrap();
    gpt.eval();
    let folder = tempfile::tempdir().unwrap();
    let tokens = |batch: usize| {
        let values: Vec<i64> = (0..batch * 6).map(|i| (i * 7 % 11) as i64).collect();
        Tensor::from_host(q, &values, [batch, 6]).unwrap()
    };
    let again = written(&gpt, &tokens(2), folder.path());
    for batch in [1, 4] {
        let expected = gpt.logits(&IndexTensor::from_tensor(tokens(batch).raw().clone()).unwrap(), None).unwrap();
        near(&again.forward(&tokens(batch)).unwrap(), &expected, "gpt");
    }
    let count = again.named_parameters().len();
    assert_eq!(count, gpt.named_parameters().len());
    same("llama block", DecoderBlock::new_with(q, DecoderBlockOptions::new(16, 2)).unwrap(), &[2, 5, 16]);
    same("attention", MultiheadAttention::new(q, 8, 2).unwrap(), &[2, 5, 8]);
    let vit = VisionTransformerOptions { num_classes: 7, ..VisionTransformerOptions::new(16, 8, 1, 2, 16, 32) };
    same("vit", VisionTransformer::new_with(q, vit).unwrap(), &[2, 3, 16, 16]);
}

#[test]
fn pointwise_operations() {
    let names = "neg abs reciprocal square sign floor ceil round trunc frac isnan isinf isfinite logical_not exp expm1 sqrt rsqrt log log1p \
                 sin cos tan tanh erf exp2 log2 log10 sinh cosh asin acos atan asinh acosh atanh sigmoid relu relu6 leaky_relu elu celu \
                 selu gelu gelu_tanh silu softplus mish softsign hardtanh hardsigmoid hardswish hardshrink softshrink threshold clamp \
                 nan_to_num";
    for name in names.split_whitespace() {
        same(name, of(move |x| functional::apply(name, &[x.into()], &[])), &[3, 7]);
    }
    for name in ["add", "sub", "mul", "div", "minimum", "maximum", "fmod", "remainder", "atan2", "hypot", "eq", "ge"] {
        same(name, of(move |x| functional::apply(name, &[x.into(), functional::Operand::Number(0.75)], &[])), &[3, 7]);
    }
}

#[test]
fn layout_reductions_and_choice() {
    use functional as f;
    same("slices", of(|x| f::cat(&[&x.i((.., 1..3))?, &x.i((.., Slice::new(Some(4), None, 2)))?], 1)), &[3, 9]);
    same("flip", of(|x| f::flip(x, &[1, 0]).and_then(|y| f::flip(&y, &[0]))), &[3, 9]);
    same(
        "permute",
        of(|x| f::reshape(&f::permute(x, &[2, 0, 1])?, [x.shape()[2], x.shape()[0] * x.shape()[1]])),
        &[2, 3, 4],
    );
    same("stack", of(|x| f::stack(&[x, &f::neg(x)?], 1)), &[2, 3]);
    same(
        "reductions",
        of(|x| {
            f::cat(
                &[
                    &f::sum(x, 1, true)?,
                    &f::mean(x, 1, true)?,
                    &f::max(x, 1, true)?,
                    &f::var(x, 1, 1.0, true)?,
                    &f::std(x, 1, 0.0, true)?,
                    &f::logsumexp(x, 1, true)?,
                    &f::norm(x, 2.0, 1, true)?,
                    &f::norm(x, 3.0, 1, true)?,
                    &f::prod(x, 1, true)?,
                ],
                1,
            )
        }),
        &[3, 7],
    );
    same("sum of all", of(|x| f::sum(x, (), false)), &[3, 7]);
    same("where", of(|x| f::where_(&f::gt(x, 0.5)?, x, -1.0)), &[3, 7]);
    same(
        "logic",
        of(|x| {
            let t = f::logical_and(&f::gt(x, -1.0)?, &f::lt(x, 1.0)?)?;
            f::mul(x, &f::cast(&t, DType::F32)?)
        }),
        &[3, 7],
    );
    same("triangle", of(|x| f::tril(x, 0)), &[2, 4, 4]);
    same("pad", of(|x| f::pad(x, &[(1, 2)], f::PadMode::Constant(0.5))), &[2, 4]);
    same("reflect", of(|x| f::pad(x, &[(1, 2)], f::PadMode::Reflect)), &[2, 4]);
    same("cumsum", of(|x| f::cumsum(x, 1)), &[2, 4]);
    same("argmax", of(|x| f::cast(&Tensor::from(f::argmax(x, Some(1), true)?.tensor().clone()), DType::F32)), &[3, 7]);
    same("sort", of(|x| f::sort(x, 1, true).map(|(values, _)| values)), &[3, 7]);
    same("top", of(|x| f::topk(x, 2, 1, false).map(|(values, _)| values)), &[3, 7]);
    same(
        "largest",
        of(|x| netcl_nn::autograd::ops::statistics::max_along(x, 1, false).map(|(values, _)| values)),
        &[3, 7],
    );
    same("matmul", of(|x| f::matmul(x, &f::transpose(x, 1, 2)?)), &[2, 3, 4]);
    same("einsum", of(|x| f::einsum("bij,bkj->bik", &[x, x])), &[2, 3, 4]);
    same("zeros of the batch", of(|x| f::cat(&[x, &Tensor::zeros(x.queue(), [x.shape()[0], 2])?], 1)), &[3, 4]);
    same("repeat", of(|x| f::repeat(x, &[2, 1, 3])), &[2, 4]);
    same(
        "in place",
        of(|x| {
            let mut y = f::relu(x)?;
            y.add_(x)?;
            y.mul_(2.0)?;
            Ok(y)
        }),
        &[2, 4],
    );
    same("glu", of(|x| f::glu(x, 1)), &[2, 4]);
    same("gather", of(|x| f::index_select(x, 1, &IndexTensor::from_host(x.queue(), &[2i64, 0], [2])?)), &[2, 4]);
    same("indexed", of(|x| x.i((.., [3, 0, 1]))), &[2, 4]);
    same("masked", of(|x| f::masked_fill(x, f::gt(x, 0.0)?.raw(), 9.0)), &[2, 4]);
    same("divided by the batch", of(|x| f::div(x, x.shape()[0] as f64)), &[2, 4]);
    same("the input itself", of(|x| Ok(x.clone())), &[2, 4]);
}

#[test]
fn what_cannot_be_written_is_listed_with_its_modules() {
    let module = sequential![
        of(|x| netcl_nn::autograd::ops::linalg::det(&functional::reshape(x, [x.shape()[0], 2, 2])?)
            .and_then(|d| functional::mul(x, &functional::reshape(&d, [x.shape()[0], 1])?))),
        Linear::new(&cpu(), 4, 4).unwrap(),
        of(|x| netcl_nn::autograd::ops::linalg::inv(&functional::reshape(x, [x.shape()[0], 2, 2])?)),
    ];
    let mut module = module;
    module.eval();
    let folder = tempfile::tempdir().unwrap();
    let error = save(folder.path().join("x.onnx"), &module, &numbers(&[2, 4])).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, Error::Export { .. })
            && text.contains("linalg_det (in 0)")
            && text.contains("linalg_inv (in 2)"),
        "{text}"
    );
    module.train();
    let mut training = sequential![Dropout::new(0.5).unwrap()];
    training.train();
    let text = save(folder.path().join("x.onnx"), &training, &numbers(&[2, 4])).unwrap_err().to_string();
    assert!(text.contains("eval()"), "{text}");
    let batch = of(|x| functional::mul(x, 1.0 / x.shape()[0] as f64));
    let text = save(folder.path().join("x.onnx"), &batch, &numbers(&[2, 4])).unwrap_err().to_string();
    assert!(text.contains("dynamic_batch"), "{text}");
}

#[test]
fn weights_beside_the_model() {
    let mut model = sequential![Linear::new(&cpu(), 64, 64).unwrap()];
    model.eval();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let options = SaveOptions { external_data: Some(true), ..Default::default() };
    let x = numbers(&[2, 64]);
    save_with(&path, &model, std::slice::from_ref(&x), &options, &|t| Ok(vec![model.forward(&t[0])?])).unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() < 4096);
    assert!(std::fs::metadata(folder.path().join("model.onnx.data")).unwrap().len() >= 64 * 64 * 4);
    near(&load(&path, &cpu()).unwrap().forward(&x).unwrap(), &model.forward(&x).unwrap(), "external");
    let file: proto::Model = wire::read(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(file.graph.unwrap().output[0].name, "output");
}

#[test]
fn parts_that_are_overwritten() {
    use functional as f;
    let zeros = |x: &Tensor| Tensor::zeros(x.queue(), x.shape().to_vec());
    let put = |x: &Tensor| {
        let mut y = f::mul(x, 2.0)?;
        y.index_put_((.., 1..3), -1.0, false)?;
        y.index_put_((.., 4), &x.i((.., 0))?, false)?;
        Ok(y)
    };
    same("slices", of(put), &[2, 6]);
    same(
        "of a constant",
        of(move |x| {
            let mut y = zeros(x)?;
            y.index_put_((.., 1..3), &x.i((.., 3..5))?, false)?;
            y.add_(x)?;
            Ok(y)
        }),
        &[2, 6],
    );
    same(
        "two axes and a step",
        of(move |x| {
            let mut y = f::neg(x)?;
            y.index_put_((.., 1..3, Slice::new(Some(0), None, 2)), &x.i((.., 0..2, 2..5))?, false)?;
            y.index_put_((.., 0, Slice::new(None, None, -1)), &x.i((.., 3))?, false)?;
            Ok(y)
        }),
        &[2, 4, 6],
    );
    same(
        "added to a part",
        of(|x| {
            let mut y = f::neg(x)?;
            y.index_put_((.., ..2), x.i((.., 2..4)).as_ref().unwrap(), true)?;
            Ok(y)
        }),
        &[2, 4],
    );
    same(
        "rows by index",
        of(|x| {
            let mut y = f::neg(x)?;
            y.index_put_((.., [3, 0]), 5.0, false)?;
            y.index_put_((.., [1, 1]), x.i((.., ..2)).as_ref().unwrap(), true)?;
            Ok(y)
        }),
        &[2, 4, 3],
    );
    same(
        "the first row of the batch",
        of(|x| {
            let mut y = f::neg(x)?;
            y.index_put_(0, 7.0, false)?;
            Ok(y)
        }),
        &[2, 4],
    );
}

/// Writes with two open axes, reads, and compares for other lengths of both.
fn two_axes(what: &str, mut module: impl Module, shape: &[usize], lengths: &[[usize; 2]]) -> OnnxModule {
    module.eval();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let axis = |axis, name| DynamicAxis::new("input", axis, name);
    let options = SaveOptions { dynamic_axes: Some(vec![axis(0, "batch"), axis(1, "sequence")]), ..Default::default() };
    let forward = |t: &[Tensor]| Ok(vec![module.forward(&t[0])?]);
    save_with(&path, &module, &[numbers(shape)], &options, &forward).unwrap_or_else(|error| panic!("{what}: {error}"));
    let again = load(&path, &cpu()).unwrap();
    let _scope = no_grad();
    for length in lengths {
        let x = numbers(&[&length[..], &shape[2..]].concat());
        near(&again.forward(&x).unwrap(), &module.forward(&x).unwrap(), &format!("{what} {length:?}"));
    }
    again
}

#[test]
fn batch_and_sequence_are_open() {
    use functional as f;
    let q = &cpu();
    let lengths = [[1, 1], [2, 5], [5, 3], [3, 9]];
    let again = two_axes("attention", MultiheadAttention::new(q, 8, 2).unwrap(), &[2, 5, 8], &lengths);
    assert_eq!(again.inputs()[0].shape.as_deref().unwrap(), ["batch", "sequence", "8"]);
    assert_eq!(again.outputs()[0].shape.as_deref().unwrap(), ["batch", "sequence", "8"]);
    let flat = of(|x| f::reshape(x, [x.shape()[0] * x.shape()[1], 3]));
    let again = two_axes("one axis of both", flat, &[2, 4, 3], &lengths);
    assert_eq!(again.outputs()[0].shape.as_deref().unwrap(), ["batch * sequence", "3"]);
    two_axes("scores", of(|x| f::matmul(x, &f::transpose(x, 1, 2)?)), &[2, 4, 3], &lengths);
    two_axes(
        "a mean and a deviation",
        of(|x| f::add(&f::mean(x, 1, true)?, &f::std(x, 1, 0.0, true)?)),
        &[2, 4, 3],
        &lengths,
    );
    two_axes("divided by a length", of(|x| f::div(&f::sum(x, 1, false)?, x.shape()[1] as f64)), &[2, 4, 3], &lengths);
    two_axes("the last step", of(|x| x.i((.., -1))), &[2, 4, 3], &lengths);
    two_axes(
        "positions",
        of(|x| {
            let places: Vec<f32> = (0..x.shape()[1]).map(|at| at as f32).collect();
            f::add(x, &Tensor::from_host(x.queue(), &places, [1, x.shape()[1], 1])?)
        }),
        &[2, 4, 3],
        &lengths,
    );
    two_axes(
        "a triangle",
        of(|x| {
            let n = x.shape()[1];
            f::matmul(&f::tril(&Tensor::full(x.queue(), [n, n], DType::F32, 1.0)?, 0)?, x)
        }),
        &[2, 4, 3],
        &lengths,
    );
    two_axes(
        "the last step overwritten",
        of(|x| {
            let mut y = f::neg(x)?;
            y.index_put_((.., -1), 1.0, false)?;
            Ok(y)
        }),
        &[2, 4, 3],
        &lengths,
    );
}

#[test]
fn a_model_with_a_longest_sequence() {
    let q = &cpu();
    let mut gpt = GPT::new_with(q, GPTOptions { n_layer: 1, n_embd: 16, ..GPTOptions::new(11, 6) }).unwrap();
    gpt.eval();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let tokens = |batch: usize, length: usize| {
        let values: Vec<i64> = (0..batch * length).map(|i| (i * 7 % 11) as i64).collect();
        Tensor::from_host(q, &values, [batch, length]).unwrap()
    };
    let axis = |axis, name| DynamicAxis::new("input", axis, name);
    let options = SaveOptions { dynamic_axes: Some(vec![axis(0, "batch"), axis(1, "tokens")]), ..Default::default() };
    let forward = |t: &[Tensor]| Ok(vec![gpt.forward(&t[0])?]);
    save_with(&path, &gpt, &[tokens(2, 6)], &options, &forward).unwrap();
    let again = load(&path, q).unwrap();
    for (batch, length) in [(1, 1), (3, 4), (2, 6)] {
        let x = tokens(batch, length);
        near(&again.forward(&x).unwrap(), &gpt.forward(&x).unwrap(), "gpt");
    }
}

#[test]
fn lengths_without_a_formula_are_told() {
    use functional as f;
    let folder = tempfile::tempdir().unwrap();
    let refused = |module: Lambda, axes: &[(usize, &str)]| {
        let axis = |&(axis, name): &(usize, &str)| DynamicAxis::new("input", axis, name);
        let options = SaveOptions { dynamic_axes: Some(axes.iter().map(axis).collect()), ..Default::default() };
        let forward = |t: &[Tensor]| Ok(vec![module.forward(&t[0])?]);
        let path = folder.path().join("x.onnx");
        save_with(path, &module, &[numbers(&[2, 4, 4])], &options, &forward).unwrap_err().to_string()
    };
    // The square of a length, twice, so that no -1 stands for it.
    let square = of(|x| f::repeat(&f::reshape(x, [x.shape()[0], 16])?, &[1, x.shape()[0] * x.shape()[0]]));
    assert!(refused(square, &[(0, "n")]).contains("no formula"));
    let other = of(|x| if x.shape()[1] > 4 { f::neg(x) } else { f::relu(&f::neg(x)?) });
    assert!(refused(other, &[(1, "n")]).contains("other operations"));
    assert!(refused(of(f::neg), &[(3, "n")]).contains("axis 3"));
    assert!(refused(of(|x| f::add(x, &numbers(&[x.shape()[0], 4, 4]))), &[(0, "n")]).contains("dynamic length"));
}

#[test]
fn strided_convolutions_of_open_sizes() {
    let q = &cpu();
    let mut cnn = sequential![
        Conv2d::new(q, 3, 4, 3).unwrap().padding(1).stride(2),
        ReLU,
        MaxPool2d::new(2),
        AdaptiveAvgPool2d::new(1),
        Flatten::default(),
        Linear::new(q, 4, 2).unwrap(),
    ];
    cnn.eval();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let axes = [(0, "batch"), (2, "height"), (3, "width")].map(|(axis, name)| DynamicAxis::new("input", axis, name));
    let options = SaveOptions { dynamic_axes: Some(axes.to_vec()), ..Default::default() };
    save_with(&path, &cnn, &[numbers(&[1, 3, 16, 20])], &options, &|t| Ok(vec![cnn.forward(&t[0])?])).unwrap();
    let again = load(&path, q).unwrap();
    for shape in [[1, 3, 16, 20], [2, 3, 9, 31], [3, 3, 64, 32]] {
        near(&again.forward(&numbers(&shape)).unwrap(), &cnn.forward(&numbers(&shape)).unwrap(), "cnn");
    }
}

#[test]
fn one_tensor_as_two_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let module = of(|x| Ok(x.clone()));
    let forward = |t: &[Tensor]| Ok(vec![functional::sub(&t[0], &functional::mul(&t[1], 3.0)?)?]);
    let x = numbers(&[2, 3]);
    save_with(&path, &module, &[x.clone(), x], &SaveOptions::default(), &forward).unwrap();
    let again = load(&path, &cpu()).unwrap();
    let inputs = [numbers(&[2, 3]), functional::neg(&numbers(&[2, 3])).unwrap()];
    let got = again.run(inputs.iter().map(|t| t.clone().into()).collect()).unwrap();
    near(&got[0].to_tensor(&cpu()).unwrap(), &forward(&inputs).unwrap()[0], "two inputs");
}

#[test]
fn equal_constants_as_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let module = of(|x| Ok(x.clone()));
    let ones = |x: &Tensor| Tensor::full(x.queue(), [2], DType::F32, 1.0);
    let forward = |t: &[Tensor]| Ok(vec![ones(&t[0])?, ones(&t[0])?, functional::add(&t[0], &ones(&t[0])?)?]);
    let x = numbers(&[3, 2]);
    save_with(&path, &module, std::slice::from_ref(&x), &SaveOptions::default(), &forward).unwrap();
    let got = load(&path, &cpu()).unwrap().run(vec![x.clone().into()]).unwrap();
    for (got, expected) in got.iter().zip(forward(&[x]).unwrap()) {
        near(&got.to_tensor(&cpu()).unwrap(), &expected, "constants");
    }
}

#[test]
fn a_step_that_follows_a_length() {
    let every = |x: &Tensor| x.i((.., Slice::new(Some(0), None, x.shape()[0] as isize)));
    let halves = of(move |x| functional::sum(&every(x)?, 1, false));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    match save(&path, &halves, &numbers(&[2, 12])) {
        Err(error) => assert!(error.to_string().contains("dynamic"), "{error}"),
        Ok(()) => {
            for batch in [1, 2, 3, 4] {
                let x = numbers(&[batch, 12]);
                near(&load(&path, &cpu()).unwrap().forward(&x).unwrap(), &halves.forward(&x).unwrap(), "step");
            }
        }
    }
}

#[test]
fn angles_in_all_quadrants() {
    use functional as f;
    let angle = |x: &Tensor| f::apply("atan2", &[(&x.i((.., 0))?).into(), (&x.i((.., 1))?).into()], &[]);
    let module = of(angle);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    save(&path, &module, &numbers(&[4, 2])).unwrap();
    let points = [
        [1.0f32, 2.0],
        [1.0, -2.0],
        [-1.0, -2.0],
        [-1.0, 2.0],
        [0.0, -1.0],
        [0.0, 1.0],
        [0.0, 0.0],
        [1.0, 0.0],
        [-1.0, 0.0],
        [1e-5, -1.0],
        [-1e-5, -1.0],
        [1e-20, -1.0],
        [1.0, -0.0],
        [-1.0, -0.0],
        [3e30, -3e30],
    ];
    let x = Tensor::from_host(&cpu(), points.as_flattened(), [points.len(), 2]).unwrap();
    near(&load(&path, &cpu()).unwrap().forward(&x).unwrap(), &module.forward(&x).unwrap(), "atan2");
}

#[test]
fn normalisation_and_truth_values() {
    use functional as f;
    let normed = |x: &Tensor| netcl_nn::autograd::ops::norm::layer_norm(x, 2, None, None, 1e-5);
    two_axes("layer norm without weights", of(normed), &[2, 5, 4], &[[1, 2], [2, 5], [3, 7]]);
    same("layer norm of all", of(|x| netcl_nn::autograd::ops::norm::layer_norm(x, 1, None, None, 1e-5)), &[2, 5]);
    let any = |x: &Tensor| f::cast(&f::max(&f::gt(x, 0.5)?, 1, false)?, DType::F32);
    same("the largest truth value", of(any), &[3, 7]);
}

#[test]
fn bfloat16_needs_a_later_operator_set() {
    use functional as f;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let module = of(|x| f::mul(&f::sin(x)?, 2.0));
    for (dtype, opset) in [(DType::F32, 18), (DType::BF16, 22)] {
        let x = numbers(&[2, 3]).cast(dtype).unwrap();
        save(&path, &module, &x).unwrap();
        let file: proto::Model = wire::read(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(file.opset_import[0].version, opset);
        near(&load(&path, &cpu()).unwrap().forward(&x).unwrap(), &module.forward(&x).unwrap(), "bfloat16");
    }
}

#[test]
fn values_that_are_read_on_the_host_are_told() {
    use functional as f;
    let folder = tempfile::tempdir().unwrap();
    let refused = |module: Lambda, batch: bool| {
        let options = SaveOptions { dynamic_batch: batch, ..Default::default() };
        let forward = |t: &[Tensor]| Ok(vec![module.forward(&t[0])?]);
        let path = folder.path().join("x.onnx");
        save_with(path, &module, &[numbers(&[3, 4])], &options, &forward).err().map(|error| error.to_string())
    };
    let told = |module: Lambda| {
        let text = refused(module, false).expect("it was written");
        assert!(text.contains("on the host") || text.contains("by numbers that it reads"), "{text}");
    };
    told(of(|x| {
        let mask: Vec<f32> = x.to_host::<f32>()?.iter().map(|v| f32::from(*v > 0.0)).collect();
        f::mul(x, &Tensor::from_host(x.queue(), &mask, x.shape().to_vec())?)
    }));
    told(of(|x| f::mul(x, x.to_host::<f32>()?[0] as f64)));
    told(of(|x| {
        f::index_select(x, 1, &IndexTensor::from_host(x.queue(), &[i64::from(x.to_host::<f32>()?[0] > -1.0)], [1])?)
    }));
    told(of(|x| Tensor::from_host(x.queue(), &x.to_host::<f32>()?, x.shape().to_vec())));
    told(of(|x| if x.to_host::<f32>()?[0] > 0.0 { f::neg(x) } else { f::relu(&f::neg(x)?) }));
    // Inputs of other types, all alike.
    let path = folder.path().join("x.onnx");
    let picks = |reads: bool| {
        of(move |x| {
            let n = f::cast(x, DType::I64)?;
            if reads {
                f::mul(&f::cast(x, DType::F32)?, n.to_host::<i64>()?[0] as f64)
            } else {
                f::cast(&n, DType::F32)
            }
        })
    };
    for example in [Tensor::from_host(cpu(), &[1u8; 6], [2, 3]), Tensor::from_host(cpu(), &[7i64; 6], [2, 3])] {
        let example = example.unwrap();
        save(&path, &picks(false), &example).unwrap();
        let text = save(&path, &picks(true), &example).unwrap_err().to_string();
        assert!(text.contains("on the host"), "{text}");
    }
    // What is the same for all values is a constant.
    assert_eq!(refused(of(|x| f::add(x, &numbers(&[3, 4]))), false), None);
    assert_eq!(refused(of(|x| x.i((.., [3, 0]))), true), None);
}

#[test]
fn what_is_overwritten_through_a_view_is_right_or_told() {
    use functional as f;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let modules = [
        of(|x| {
            let y = f::neg(x)?;
            let mut v = f::reshape(&y, [x.shape()[0], 2, 3])?;
            v.index_put_((.., 1), 7.0, false)?;
            f::add(&f::reshape(&v, x.shape().to_vec())?, x)
        }),
        of(|x| {
            let y = f::neg(x)?;
            f::reshape(&y, [x.shape()[0], 2, 3])?.index_put_((.., 1), 7.0, false)?;
            f::add(&y, x)
        }),
        of(|x| {
            let y = f::neg(x)?;
            let mut part = f::reshape(&y, [x.shape()[0] * 6])?.i(1..5)?;
            part.mul_(3.0)?;
            f::add(&y, x)
        }),
    ];
    let mut told = 0;
    for (at, module) in modules.iter().enumerate() {
        match save(&path, module, &numbers(&[2, 6])) {
            Err(error) => {
                assert!(error.to_string().contains("through a view"), "{at}: {error}");
                told += 1;
            }
            Ok(()) => {
                let x = numbers(&[3, 6]);
                near(&load(&path, &cpu()).unwrap().forward(&x).unwrap(), &module.forward(&x).unwrap(), "views");
            }
        }
    }
    assert!(told < modules.len());
}
