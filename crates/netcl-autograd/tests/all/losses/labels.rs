//! Targets: every form of labels, the text of every error, labels that change.

use std::rc::Rc;

use netcl_autograd::ops::loss::{
    BceOptions, BceWithLogitsOptions, CosineEmbeddingOptions, CrossEntropyOptions, HuberOptions, KlDivOptions,
    NllOptions, Reduction, SmoothL1Options, TripletMarginOptions, binary_cross_entropy,
    binary_cross_entropy_with_logits, cosine_embedding_loss, cross_entropy, huber_loss, kl_div, l1_loss, mse_loss,
    nll_loss, smooth_l1_loss, triplet_margin_loss,
};
use netcl_autograd::ops::softmax::log_softmax;
use netcl_autograd::{Result, Tensor};
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::{Recorder, with_sink};

use super::{close, cpu, devices, f64s, tensor};

#[test]
fn every_form_of_labels_gives_one_loss() {
    for device in devices() {
        let queue = &device.queue;
        let make = |values: &[f64], shape: &[usize]| tensor(queue, values, shape, DType::F32);
        let logits = make(&[0.5, -1.0, 2.0, 0.0, 1.0, -0.5, 3.0, 0.25, 0.75], &[3, 3]).with_grad();
        let labels = [2i64, 0, 1];
        let (wide, narrow) = (
            IndexTensor::from_host(queue, &labels, [3]).unwrap(),
            IndexTensor::from_host(queue, &[2i32, 0, 1], [3]).unwrap(),
        );
        let whole = make(&[2.0, 0.0, 1.0], &[3]);
        let one_hot = make(&[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0], &[3, 3]);
        for smoothing in [0.0, 0.1] {
            let options = CrossEntropyOptions { label_smoothing: smoothing, ..Default::default() };
            let expected = cross_entropy(&logits, &labels, &options).unwrap().item().unwrap();
            let got = [
                cross_entropy(&logits, &labels[..], &options),
                cross_entropy(&logits, &labels.to_vec(), &options),
                cross_entropy(&logits, &wide, &options),
                cross_entropy(&logits, &narrow, &options),
                cross_entropy(&logits, &whole, &options),
                cross_entropy(&logits, &one_hot, &options),
            ];
            let got: Vec<f64> = got.into_iter().map(|loss| loss.unwrap().item().unwrap()).collect();
            close(&got, &[expected; 6], 1e-6).unwrap_or_else(|e| panic!("{device:?}: {e}"));
        }
        let log_p = log_softmax(&logits, 1).unwrap();
        let by_hand = nll_loss(&log_p, &wide, &NllOptions::default()).unwrap().item().unwrap();
        let at_once = cross_entropy(&logits, &wide, &CrossEntropyOptions::default()).unwrap().item().unwrap();
        assert!((by_hand - at_once).abs() < 1e-6, "{device:?}");
    }
}

/// The text of the error that a loss must give.
#[track_caller]
fn error(loss: Result<Tensor>, parts: &[&str]) {
    let text = loss.expect_err("an error").to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
}

#[test]
fn errors_name_rows_values_and_shapes() {
    let x = f64s(&[0.0; 40], &[4, 10]);
    let options = CrossEntropyOptions::default();
    let ce = |labels: &[i64]| cross_entropy(&x, labels, &options);
    error(ce(&[0, 1, 2, 12]), &["cross_entropy: label 12 in row 3 is outside 0..10", "(4, 10)", "labelled -100"]);
    error(ce(&[0, -1, 2, 3]), &["label -1 in row 1 is outside 0..10"]);
    error(ce(&[0, 1]), &["2 labels given for logits of shape (4, 10)", "need 4 (shape (4,))"]);
    let strict = CrossEntropyOptions { ignore_index: None, ..options.clone() };
    error(cross_entropy(&x, &[0, 1, -100, 3], &strict), &["label -100 in row 2", "no label is ignored"]);
    let index = IndexTensor::from_host(&cpu(), &[0i64, 1, 2, 3, 4], [5]).unwrap();
    error(
        cross_entropy(&x, &index, &options),
        &["shape (5,) does not fit", "logits of shape (4, 10)", "labels of shape (4,)"],
    );
    let index = IndexTensor::from_host(&cpu(), &[0i32, 10, 2, 3], [4]).unwrap();
    error(nll_loss(&x, &index, &NllOptions::default()), &["nll_loss: label 10 in row 1 is outside 0..10"]);
    let half = f64s(&[0.0, 1.0, 2.5, 3.0], &[4]);
    error(cross_entropy(&x, &half, &options), &["label 2.5 in row 2 is not a whole number", "(4, 10)"]);
    error(cross_entropy(&x, &f64s(&[f64::NAN; 4], &[4]), &options), &["label NaN in row 0 is not a whole number"]);
    error(cross_entropy(&x, &f64s(&[1e300; 4], &[4]), &options), &["in row 0 is outside 0..10"]);
    error(cross_entropy(&x, &f64s(&[0.0; 12], &[4, 3]), &options), &["shape (4, 3) does not fit", "(4, 10)", "(4,)"]);
    let image = f64s(&[0.0; 24], &[2, 3, 4]);
    error(
        cross_entropy(&image, &[0, 1, 2, 0, 1, 2, 3, 0], &options),
        &["label 3 in row 1 (index (1, 2)) is outside 0..3"],
    );
    error(cross_entropy(&f64s(&[0.0; 3], &[3]), &[3], &options), &["label 3 of the only row is outside 0..3"]);
    error(cross_entropy(&f64s(&[0.0], &[]), &[0], &options), &["shape ()", "axis of classes"]);
    error(nll_loss(&x, &x, &NllOptions::default()), &["nll_loss takes class labels of shape (4,)", "cross_entropy"]);

    let good = [0, 1, 2, 3];
    let with = |weight: Tensor| CrossEntropyOptions { weight: Some(weight), ..Default::default() };
    error(
        cross_entropy(&x, &good, &with(f64s(&[1.0; 4], &[4]))),
        &["shape (4,)", "weight needs shape (10,)", "(4, 10)"],
    );
    error(cross_entropy(&x, &good, &with(f64s(&[1.0; 10], &[10]).with_grad())), &["weight.detach()"]);
    let single = tensor(&cpu(), &[1.0; 10], &[10], DType::F32);
    error(cross_entropy(&x, &good, &with(single)), &["mixes float64 and float32"]);
    let smooth = CrossEntropyOptions { label_smoothing: 1.5, ..Default::default() };
    error(cross_entropy(&x, &good, &smooth), &["label_smoothing is 1.5", "from 0 to 1"]);
    error(Reduction::parse("avg").map(|_| x.clone()), &["\"avg\"", "\"mean\""]);

    // No silent broadcasting.
    let (a, b) = (f64s(&[0.0; 3], &[3]), f64s(&[0.0; 3], &[3, 1]));
    let both = ["shape (3, 1)", "(3,)", "do not broadcast"];
    error(mse_loss(&a, &b, Reduction::Mean), &both);
    error(l1_loss(&a, &b, Reduction::Mean), &both);
    error(smooth_l1_loss(&a, &b, &SmoothL1Options::default()), &both);
    error(huber_loss(&a, &b, &HuberOptions::default()), &both);
    error(binary_cross_entropy(&a, &b, &BceOptions::default()), &both);
    error(binary_cross_entropy_with_logits(&a, &b, &BceWithLogitsOptions::default()), &both);
    error(kl_div(&a, &b, &KlDivOptions::default()), &both);
    error(cosine_embedding_loss(&a, &b, &a, &CosineEmbeddingOptions::default()), &both);
    error(triplet_margin_loss(&a, &a, &b, &TripletMarginOptions::default()), &both);
    let large = BceOptions { weight: Some(b.clone()), ..Default::default() };
    error(binary_cross_entropy(&a, &a, &large), &["shape (3, 1)", "weight", "(3,)"]);
    let large = BceWithLogitsOptions { pos_weight: Some(f64s(&[1.0; 2], &[2])), ..Default::default() };
    error(binary_cross_entropy_with_logits(&a, &a, &large), &["(3,)", "(2,)"]);

    let options = SmoothL1Options { beta: -1.0, ..Default::default() };
    error(smooth_l1_loss(&a, &a, &options), &["beta is -1", "0 or more"]);
    error(huber_loss(&a, &a, &HuberOptions { delta: 0.0, ..Default::default() }), &["delta is 0", "above 0"]);
    let options = KlDivOptions { batch_mean: true, ..Default::default() };
    error(kl_div(&f64s(&[0.0], &[]), &f64s(&[0.0], &[]), &options), &["kl_div", "no first axis"]);
    error(cosine_embedding_loss(&a, &a, &a, &CosineEmbeddingOptions::default()), &["shape (3,)", "of shape ()"]);
    let options = |margin, p| TripletMarginOptions { margin, p, ..Default::default() };
    error(triplet_margin_loss(&a, &a, &a, &options(0.0, 2.0)), &["margin is 0", "above 0"]);
    error(triplet_margin_loss(&a, &a, &a, &options(1.0, 0.5)), &["p is 0.5", "at least 1"]);
    error(mse_loss(&a, &tensor(&cpu(), &[0.0; 3], &[3], DType::F32), Reduction::Mean), &["mse_loss", "float32"]);
}

#[test]
fn labels_overwritten_before_backward_are_noticed() {
    let x = f64s(&[0.0; 6], &[2, 3]).with_grad();
    let labels = IndexTensor::from_host(&cpu(), &[0i64, 1], [2]).unwrap();
    let loss = cross_entropy(&x, &labels, &CrossEntropyOptions::default()).unwrap();
    labels.tensor().fill(2.0).unwrap();
    error(loss.backward().map(|()| loss.clone()), &["labels", "overwritten in place", "labels.rs"]);
}

#[test]
fn a_recorded_step_reads_no_labels() {
    for device in devices() {
        let queue = &device.queue;
        let x = tensor(queue, &[0.5, -1.0, 2.0, 0.0, 1.0, -0.5], &[2, 3], DType::F32);
        let labels = IndexTensor::from_host(queue, &[2i64, -100], [2]).unwrap();
        for smoothing in [0.0, 0.2] {
            let options = CrossEntropyOptions { label_smoothing: smoothing, ..Default::default() };
            let recorder = Rc::new(Recorder::default());
            let recorded = with_sink(recorder.clone(), || cross_entropy(&x, &labels, &options)).unwrap();
            for (values, known) in [([2i64, -100], true), ([0, 1], true), ([-100, -100], true), ([1, 7], false)] {
                labels.tensor().assign(IndexTensor::from_host(queue, &values, [2]).unwrap().tensor()).unwrap();
                recorder.replay().unwrap();
                let got = recorded.item().unwrap();
                if known {
                    let expected = cross_entropy(&x, &values, &options).unwrap().item().unwrap();
                    close(&[got], &[expected], 1e-6).unwrap_or_else(|e| panic!("{device:?} {values:?}: {e}"));
                } else {
                    assert!(got.is_nan(), "{device:?}: a label that is no class must not pass unnoticed: {got}");
                }
            }
        }
    }
}
