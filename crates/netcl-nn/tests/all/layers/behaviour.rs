//! How layers start, what they do in training and evaluation, what they refuse, how they print.

use netcl_nn::autograd::{DType, Generator, Queue, Result, Tensor};
use netcl_nn::init::Gain;
use netcl_nn::*;

use crate::golden::{check, cpu, devices, fill, host, named, tensor};

/// The text of an error.
fn refused<T>(outcome: Result<T>) -> String {
    outcome.err().expect("an error").to_string()
}

#[test]
fn a_seed_starts_every_layer_with_the_same_values_on_every_device() {
    type Make = fn(&Queue, &mut Generator) -> Box<dyn Module>;
    let layers: [Make; 6] = [
        |q, g| Box::new(Conv1d::new_with(Build::on(q).generator(g), Conv1dOptions::new(2, 3, 3)).unwrap()),
        |q, g| Box::new(Conv2d::new_with(Build::on(q).generator(g), Conv2dOptions::new(2, 3, 3)).unwrap()),
        |q, g| {
            let options = ConvTranspose2dOptions::new(2, 3, 3);
            Box::new(ConvTranspose2d::new_with(Build::on(q).generator(g), options).unwrap())
        },
        |q, g| {
            let options = TransformerLayerOptions { dim_feedforward: 6, ..TransformerLayerOptions::new(4, 2) };
            Box::new(TransformerEncoderLayer::new_with(Build::on(q).generator(g), options).unwrap())
        },
        |q, g| Box::new(LSTM::new_with(Build::on(q).generator(g), RecurrentOptions::new(2, 3)).unwrap()),
        |q, g| Box::new(GRU::new_with(Build::on(q).generator(g), RecurrentOptions::new(2, 3)).unwrap()),
    ];
    for make in layers {
        let values = |queue: &Queue, seed| -> Vec<Vec<f64>> {
            make(queue, &mut Generator::new(seed)).parameters().iter().map(host).collect()
        };
        let expected = values(&cpu(), 5);
        assert_ne!(expected, values(&cpu(), 6));
        for device in devices() {
            assert_eq!(values(&device.queue, 5), expected, "{}", device.device_name);
        }
    }
}

#[test]
fn layers_start_as_in_pytorch() {
    let largest = |t: &Tensor| host(t).iter().fold(0f64, |most, v| most.max(v.abs()));
    let within = |t: &Tensor, bound: f64| {
        let largest = largest(t);
        assert!(largest <= bound && largest > 0.8 * bound, "{largest} for a bound of {bound}");
    };
    let conv = Conv2d::new_with(&cpu(), Conv2dOptions { groups: 2, ..Conv2dOptions::new(8, 64, 3) }).unwrap();
    within(conv.weight(), 1.0 / 36f64.sqrt());
    within(conv.bias().unwrap(), 1.0 / 36f64.sqrt());
    // PyTorch takes the second axis for the inputs of a transposed convolution, too.
    let conv = ConvTranspose2d::new(&cpu(), 64, 16, 2).unwrap();
    within(conv.weight(), 1.0 / 64f64.sqrt());
    let attention = MultiheadAttention::new(&cpu(), 16, 4).unwrap();
    for (name, parameter) in attention.named_parameters() {
        match name.as_str() {
            "in_proj_weight" => within(&parameter, (6.0 / 64f64).sqrt()),
            "out_proj.weight" => within(&parameter, 0.25),
            _ => assert_eq!(largest(&parameter), 0.0, "{name}"),
        }
    }
    GRU::new(&cpu(), 8, 16).unwrap().parameters().iter().for_each(|parameter| within(parameter, 0.25));
    let options = EmbeddingOptions { padding_idx: Some(2), ..EmbeddingOptions::new(100, 30) };
    let rows = host(Embedding::new_with(&cpu(), options).unwrap().weight());
    assert!(rows[60..90].iter().all(|v| *v == 0.0) && rows[..60].iter().all(|v| *v != 0.0));
    let mean = rows.iter().sum::<f64>() / 2970.0;
    let deviation = (rows.iter().map(|v| v * v).sum::<f64>() / 2970.0).sqrt();
    assert!(mean.abs() < 0.06 && (deviation - 1.0).abs() < 0.06, "{mean} {deviation}");
}

#[test]
fn orthogonal_matrices_are_orthogonal() {
    for (shape, rows, columns) in [(&[4, 7][..], 4, 7), (&[9, 2, 2], 9, 4), (&[5, 5], 5, 5)] {
        let law = Init::Orthogonal { gain: Gain::Factor(2.0) };
        let draw = || law.tensor(&cpu(), shape, DType::F64, Some(&mut Generator::new(3))).unwrap();
        let matrix = host(&draw());
        assert_eq!(matrix, host(&draw()));
        let at = |row: usize, column: usize| matrix[row * columns + column];
        for a in 0..rows.min(columns) {
            for b in 0..rows.min(columns) {
                let product: f64 = match rows <= columns {
                    true => (0..columns).map(|i| at(a, i) * at(b, i)).sum(),
                    false => (0..rows).map(|i| at(i, a) * at(i, b)).sum(),
                };
                let expected = if a == b { 4.0 } else { 0.0 };
                assert!((product - expected).abs() < 1e-12, "{shape:?} {a} {b}: {product}");
            }
        }
    }
    assert!(
        refused(Init::Orthogonal { gain: Gain::Linear }.tensor(&cpu(), [3], DType::F32, None)).contains("two axes")
    );
}

#[test]
fn truncated_normal_numbers_keep_their_bounds_and_moments() {
    let law = Init::TruncNormal { mean: 1.0, std: 2.0, low: 0.0, high: 4.0 };
    let draw = |seed| host(&law.tensor(&cpu(), [20_000], DType::F32, Some(&mut Generator::new(seed))).unwrap());
    let values = draw(1);
    assert_eq!(values, draw(1));
    assert_ne!(values, draw(2));
    assert!(values.iter().all(|v| (0.0..=4.0).contains(v)));
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
    // Of the cut distribution, by its density at the bounds.
    assert!((mean - 1.7126).abs() < 0.02 && (variance - 1.1209).abs() < 0.02, "{mean} {variance}");
    let fixed = Init::TruncNormal { mean: 9.0, std: 0.0, low: -1.0, high: 1.0 };
    assert_eq!(host(&fixed.tensor(&cpu(), [2], DType::F32, None).unwrap()), [1.0, 1.0]);
    let empty = Init::TruncNormal { mean: 0.0, std: 1.0, low: 1.0, high: -1.0 };
    assert!(refused(empty.tensor(&cpu(), [2], DType::F32, None)).contains("[1, -1]"));
}

#[test]
fn single_samples_are_batches_of_one() {
    let first = || RecurrentOptions { batch_first: true, ..RecurrentOptions::new(4, 2) };
    let layers: Vec<(Box<dyn Module>, &[usize])> = vec![
        (Box::new(Conv1d::new(&cpu(), 2, 3, 3).unwrap()), &[2, 5]),
        (Box::new(Conv2d::new(&cpu(), 2, 3, 3).unwrap()), &[2, 5, 4]),
        (Box::new(ConvTranspose2d::new(&cpu(), 2, 3, 3).unwrap()), &[2, 5, 4]),
        (Box::new(MaxPool2d::new(2)), &[2, 5, 4]),
        (Box::new(AdaptiveAvgPool2d::new(2)), &[2, 5, 4]),
        (Box::new(MultiheadAttention::new(&cpu(), 4, 2).unwrap()), &[3, 4]),
        (Box::new(LSTM::new_with(&cpu(), first()).unwrap()), &[3, 4]),
        (Box::new(GRU::new_with(&cpu(), first()).unwrap()), &[3, 4]),
        (Box::new(LSTMCell::new(&cpu(), 4, 2).unwrap()), &[4]),
    ];
    for (layer, shape) in layers {
        let x = named(&cpu(), DType::F32, "x", shape);
        let (single, batch) = (layer.forward(&x).unwrap(), layer.forward(&x.unsqueeze(0).unwrap()).unwrap());
        assert_eq!([&[1], &single.shape()[..]].concat(), batch.shape()[..], "{}", layer.kind());
        assert_eq!(host(&single), host(&batch), "{}", layer.kind());
    }
}

#[test]
fn dropout_drops_in_training_only() {
    let x = Tensor::full(&cpu(), [8, 16, 3, 3], DType::F32, 1.0).unwrap().with_grad();
    let mut layer = Dropout::new(0.25).unwrap();
    let y = layer.forward(&x).unwrap();
    let dropped = host(&y).iter().filter(|v| **v == 0.0).count();
    assert!((200..380).contains(&dropped), "{dropped} of 1152");
    y.sum((), false).unwrap().backward().unwrap();
    assert_eq!(host(&x.grad().unwrap()), host(&y), "the gradient passes where the value did");
    let mut channels = Dropout2d::new(0.25).unwrap();
    let values = host(&channels.forward(&x).unwrap());
    assert!(values.chunks(9).all(|channel| channel.iter().all(|v| *v == channel[0])));
    let dropped = values.chunks(9).filter(|channel| channel[0] == 0.0).count();
    assert!((10..60).contains(&dropped), "{dropped} of 128 channels");
    layer.eval();
    channels.eval();
    assert!(layer.forward(&x).unwrap().is(&x) && channels.forward(&x).unwrap().is(&x));
    let mut seeded = Dropout::new(0.5).unwrap().seeded(3);
    assert_eq!(host(&seeded.forward(&x).unwrap()), host(&seeded.forward(&x).unwrap()));
    seeded.eval();
    assert!(seeded.forward(&x).unwrap().is(&x));

    let options = RecurrentOptions { num_layers: 2, dropout: 0.5, ..RecurrentOptions::new(4, 8) };
    let mut lstm = LSTM::new_with(&cpu(), options).unwrap();
    let x = named(&cpu(), DType::F32, "x", &[3, 2, 4]);
    let run = |lstm: &LSTM| host(&lstm.forward(&x).unwrap());
    assert_ne!(run(&lstm), run(&lstm));
    lstm.eval();
    assert_eq!(run(&lstm), run(&lstm));
}

#[test]
fn running_averages_go_on_from_a_loaded_count_and_on_another_device() {
    let options = BatchNormOptions { momentum: None, ..BatchNormOptions::new(1) };
    for device in devices() {
        let mut layer = BatchNorm1d::new_with(&cpu(), options.clone()).unwrap();
        let step = |layer: &BatchNorm1d, queue: &Queue, value: f64| {
            let x = tensor(queue, DType::F32, &[value, value], &[2, 1]);
            layer.forward(&x).unwrap();
            host(layer.running_mean().unwrap())[0]
        };
        assert_eq!([step(&layer, &cpu(), 4.0), step(&layer, &cpu(), 8.0)], [4.0, 6.0]);
        layer.named_buffers().last().unwrap().1.fill(3.0).unwrap(); // as if three batches had been loaded
        assert_eq!(step(&layer, &cpu(), 10.0), 7.0); // 6 + (10 - 6) / 4
        layer.to(&device.queue).unwrap();
        assert_eq!(step(&layer, &device.queue, 12.0), 8.0, "{}", device.device_name); // 7 + (12 - 7) / 5
        assert_eq!(host(&layer.named_buffers().last().unwrap().1), [5.0]);
        layer.eval();
        assert_eq!(step(&layer, &device.queue, 100.0), 8.0, "evaluation learns nothing");
    }
}

#[test]
fn wrong_settings_and_inputs_are_named() {
    let x = named(&cpu(), DType::F32, "x", &[2, 3, 4]);
    let grouped = Conv2dOptions { groups: 2, ..Conv2dOptions::new(3, 4, 3) };
    let text = refused(Conv2d::new_with(&cpu(), grouped));
    assert_eq!(text, "Conv2d: groups=2 must divide in_channels=3 and out_channels=4");
    let halved = Conv2dOptions { stride: [2, 1], padding: Padding::Same, ..Conv2dOptions::new(3, 4, 3) };
    let text = refused(Conv2d::new_with(&cpu(), halved));
    assert_eq!(text, "Conv2d: padding=\"same\" needs a stride of 1, not (2, 1)");
    let image = named(&cpu(), DType::F32, "x", &[1, 3, 4, 4]);
    let set = Conv2d::new(&cpu(), 3, 4, 3).unwrap().stride(2).padding([1, 0]).dilation(1);
    assert_eq!(set.forward(&image).unwrap().shape()[..], [1, 4, 2, 1]);
    assert_eq!(refused(set.stride(0).forward(&image)), "Conv2d: stride is 0; it must be at least 1");
    assert_eq!(MaxPool2d::new(3).stride(1).padding(1).forward(&image).unwrap().shape()[..], [1, 3, 4, 4]);
    let text = refused(Conv1d::new(&cpu(), 4, 4, 3).unwrap().forward(&x));
    assert_eq!(text, "Conv1d(in_channels=4): expected input (N, 4, L), got (2, 3, 4)");
    let text = refused(PixelShuffle::new(2).forward(&x));
    assert_eq!(text, "PixelShuffle(2): expected input (..., C * 2 * 2, H, W), got (2, 3, 4)");
    let text = refused(CircularPad1d::new([5, 0]).forward(&x));
    assert_eq!(text, "pad: an axis of length 4 can be continued by 0 to 4, not by 5 and 0");
    assert!(refused(Upsample::nearest([2, 3]).forward(&x)).contains("a sequence needs one number, not (2, 3)"));
    assert!(refused(Unflatten::new(2, [3, -1]).forward(&x)).contains("length 4 cannot be split into (3, -1)"));
    assert!(
        refused(BatchNorm2d::new(&cpu(), 3).unwrap().forward(&x))
            .contains("BatchNorm2d(3): expected input (N, 3, H, W)")
    );
    assert!(
        refused(LayerNorm::new(&cpu(), [3]).unwrap().forward(&x)).contains("must end with the normalized_shape (3,)")
    );
    assert!(refused(GroupNorm::new(&cpu(), 2, 3)).contains("num_groups=2 must divide num_channels=3"));
    assert!(refused(GroupNorm::new(&cpu(), 2, 4).unwrap().forward(&x)).contains("expected input (N, 4, ...)"));
    assert!(refused(Dropout::new(1.5)).contains("p is a probability from 0 to 1, not 1.5"));
    let padding = EmbeddingOptions { padding_idx: Some(5), ..EmbeddingOptions::new(5, 2) };
    assert!(refused(Embedding::new_with(&cpu(), padding)).contains("padding_idx=5 is no index of 5 rows"));
    assert!(refused(Embedding::new(&cpu(), 5, 2).unwrap().forward(&x)).contains("not a whole number"));
    assert!(refused(MultiheadAttention::new(&cpu(), 6, 4)).contains("num_heads=4 must divide embed_dim=6"));
    assert!(refused(LSTM::new(&cpu(), 4, 0)).contains("hidden_size is 0; it must be at least 1"));
    let lstm = LSTM::new(&cpu(), 4, 5).unwrap();
    assert!(refused(lstm.run(&x, Some((&x, &x)))).contains("(1, 3, 5)"));
    assert!(refused(LSTMCell::new(&cpu(), 4, 5).unwrap().run(&x, None)).contains("(batch, width)"));
    assert!(refused(GRUCell::new(&cpu(), 4, 0)).contains("hidden_size is 0; it must be at least 1"));
    assert!(
        refused(lstm.forward(&x.flatten(0, -1).unwrap()))
            .contains("LSTM(input_size=4): expected input (length, batch, 4)")
    );
}

#[test]
fn a_folded_convolution_is_the_two_layers() {
    for (bias, affine) in [(true, true), (false, true), (true, false)] {
        let (stride, padding) = ([2, 1], [1, 0].into());
        let options = Conv2dOptions { bias, stride, padding, ..Conv2dOptions::new(2, 3, 3) };
        let conv = Conv2d::new_with(Build::on(&cpu()).dtype(DType::F64), options).unwrap();
        let options = BatchNormOptions { affine, ..BatchNormOptions::new(3) };
        let mut norm = BatchNorm2d::new_with(Build::on(&cpu()).dtype(DType::F64), options).unwrap();
        fill(&conv);
        fill(&norm);
        let x = named(&cpu(), DType::F64, "x", &[2, 2, 6, 5]);
        norm.forward(&conv.forward(&x).unwrap()).unwrap();
        assert!(refused(fuse_conv_bn(&conv, &norm)).contains("call eval() first"));
        norm.eval();
        let apart = host(&norm.forward(&conv.forward(&x).unwrap()).unwrap());
        check("folded", &host(&fuse_conv_bn(&conv, &norm).unwrap().forward(&x).unwrap()), &apart, 1e-12);
        assert!(refused(fuse_conv_bn(&Conv2d::new(&cpu(), 1, 2, 1).unwrap(), &norm)).contains("2 filters"));
    }
}

#[test]
fn layers_print_their_settings() {
    let dilation = [2, 1];
    let options = Conv2dOptions { padding: 1.into(), dilation, bias: false, ..Conv2dOptions::new(3, 8, 3) };
    let printed = [
        Conv2d::new_with(&cpu(), options).unwrap().to_string(),
        Conv1d::new(&cpu(), 3, 8, 3).unwrap().to_string(),
        BatchNorm2d::new(&cpu(), 8).unwrap().to_string(),
        MaxPool2d::new(2).to_string(),
        ZeroPad2d::new([1, 0, -1, 2]).to_string(),
        Upsample::nearest(2.0).to_string(),
        LSTM::new(&cpu(), 3, 4).unwrap().to_string(),
        RNNCell::new(&cpu(), 3, 4).unwrap().to_string(),
    ];
    let expected = [
        "Conv2d(in_channels=3, out_channels=8, kernel_size=(3, 3), stride=(1, 1), pad=(1, 1), dilation=(2, 1), bias=False)",
        "Conv1d(in_channels=3, out_channels=8, kernel_size=(3,), stride=(1,), pad=(0,), bias=True)",
        "BatchNorm2d(num_features=8, eps=0.00001, momentum=0.1, affine=True, track_running_stats=True)",
        "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)",
        "ZeroPad2d(padding=(1, 0, -1, 2))",
        "Upsample(size=None, scale_factor=(2, 2), mode='nearest', align_corners=False)",
        "LSTM(input_size=3, hidden_size=4, num_layers=1, bias=True, batch_first=False, dropout=0, bidirectional=False)",
        "RNNCell(input_size=3, hidden_size=4, bias=True, nonlinearity='tanh')",
    ];
    assert_eq!(printed, expected);
}
