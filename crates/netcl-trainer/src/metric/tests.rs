//! Metrics against scikit-learn's numbers, in every form of targets, and inside captured steps.
//!
//! The numbers were made by:
//!
//! ```text
//! import numpy as np
//! from sklearn import metrics as m
//! i, c = np.mgrid[0:23, 0:4]
//! logits = np.sin(1.7 * i + 0.9 * c + 0.3 * i * c) * 3
//! labels = (np.arange(23) ** 2 + np.arange(23) // 3) % 4
//! guess = logits.argmax(1)
//! p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
//! print(m.accuracy_score(labels, guess), m.top_k_accuracy_score(labels, logits, k=2))
//! for f in (m.precision_score, m.recall_score, m.f1_score):
//!     print([f(labels, guess, average=a) for a in ("macro", "micro", "weighted")], f(labels, guess, average=None))
//! print(m.confusion_matrix(labels, guess))
//! print(m.roc_auc_score(labels, p, multi_class="ovr"), np.exp(m.log_loss(labels, p)))
//! score, positive = (np.arange(23) * 7 % 10 - 4) / 4, np.arange(23) % 3 == 0
//! print(m.roc_auc_score(positive, score), m.precision_score(positive, score > 0), m.recall_score(positive, score > 0),
//!       m.f1_score(positive, score > 0), m.accuracy_score(positive, score > 0))
//! print(m.mean_absolute_error(positive, score), m.mean_squared_error(positive, score),
//!       m.root_mean_squared_error(positive, score))
//! ```

use netcl_nn::autograd::autocast::autocast;
use netcl_nn::autograd::ops::layout::{permute, reshape};
use netcl_nn::autograd::ops::loss::Target;
use netcl_nn::autograd::{DType, IndexTensor, Queue, Tensor, manager};
use netcl_runtime::capture::capture;

use super::*;

const SAMPLES: usize = 23;
/// The last batch is smaller than the others.
const BATCHES: [std::ops::Range<usize>; 3] = [0..10, 10..20, 20..SAMPLES];

fn logits(rows: std::ops::Range<usize>) -> Vec<f32> {
    let value = |i: f64, c: f64| ((1.7 * i + 0.9 * c + 0.3 * i * c).sin() * 3.0) as f32;
    rows.flat_map(|i| (0..4).map(move |c| value(i as f64, f64::from(c)))).collect()
}

fn labels(rows: std::ops::Range<usize>) -> Vec<i64> {
    rows.map(|i| ((i * i + i / 3) % 4) as i64).collect()
}

fn scores(rows: std::ops::Range<usize>) -> Vec<f32> {
    rows.map(|i| ((i * 7 % 10) as f32 - 4.0) / 4.0).collect()
}

fn positive(rows: std::ops::Range<usize>) -> Vec<i64> {
    rows.map(|i| i64::from(i % 3 == 0)).collect()
}

/// The figure over all batches of the golden logits.
fn over_batches(metric: &mut dyn Metric, queue: &Queue) -> Result<f64> {
    for rows in BATCHES {
        let predictions = Tensor::from_host(queue, &logits(rows.clone()), [rows.len(), 4])?;
        metric.update(&predictions, (&labels(rows)).into())?;
    }
    metric.compute()
}

#[track_caller]
fn assert_close(got: f64, wanted: f64) {
    assert!((got - wanted).abs() < 1e-6 * wanted.abs().max(1.0), "{got} is not {wanted}");
}

fn score(score: Score, average: Average) -> ClassScore {
    ClassScore::new(score, average, LabelOptions::default())
}

#[test]
fn figures_of_classes_are_those_of_scikit_learn() -> Result<()> {
    let queue = manager().cpu().queue;
    let of = |mut metric: Box<dyn Metric>| over_batches(&mut *metric, &queue);
    assert_close(of(metric_from_name("accuracy")?)?, 0.2608695652173913);
    assert_close(of(metric_from_name("top2")?)?, 0.6086956521739131);
    assert_close(of(metric_from_name("auroc")?)?, 0.5733474310776943);
    assert_close(of(metric_from_name("perplexity")?)?, 9.329588495142964);
    let averages = [Average::Macro, Average::Micro, Average::Weighted];
    let golden = [
        (Score::Precision, [0.2895833333333333, 0.2608695652173913, 0.2855072463768116]),
        (Score::Recall, [0.2857142857142857, 0.2608695652173913, 0.2608695652173913]),
        (Score::F1, [0.27976190476190477, 0.2608695652173913, 0.26604554865424435]),
    ];
    for (kind, wanted) in golden {
        for (average, wanted) in averages.into_iter().zip(wanted) {
            assert_close(of(Box::new(score(kind, average)))?, wanted);
        }
    }
    let mut f1 = score(Score::F1, Average::Macro);
    over_batches(&mut f1, &queue)?;
    for (got, wanted) in f1.per_class()?.into_iter().zip([1.0 / 6.0, 0.5, 2.0 / 7.0, 1.0 / 6.0]) {
        assert_close(got, wanted);
    }
    let mut confusion = ConfusionMatrix::default();
    assert_close(over_batches(&mut confusion, &queue)?, 0.2608695652173913);
    assert_eq!(confusion.matrix()?, [[1, 0, 2, 4], [1, 2, 0, 1], [3, 1, 2, 2], [0, 1, 2, 1]]);
    confusion.reset()?;
    over_batches(&mut confusion, &queue)?;
    assert_eq!(confusion.matrix()?[2], [3, 1, 2, 2], "a reset starts over");
    Ok(())
}

#[test]
fn figures_of_one_number_per_sample_are_those_of_scikit_learn() -> Result<()> {
    let queue = manager().cpu().queue;
    let golden = [
        ("auroc", 0.3625),
        ("precision", 0.2727272727272727),
        ("recall", 0.375),
        ("f1", 0.3157894736842105),
        ("accuracy", 0.43478260869565216),
        ("mae", 0.8369565217391305),
        ("mse", 0.9646739130434783),
        ("rmse", 0.982178147304998),
    ];
    for (name, wanted) in golden {
        // (N,) and (N, 1) beside labels of their own shape and, for classes, of shape (N,).
        for ndim in [1, 2] {
            let mut metric = metric_from_name(name)?;
            for rows in BATCHES {
                let shape = if ndim == 1 { vec![rows.len()] } else { vec![rows.len(), 1] };
                let predictions = Tensor::from_host(&queue, &scores(rows.clone()), shape.clone())?;
                let values: Vec<f32> = positive(rows.clone()).into_iter().map(|label| label as f32).collect();
                metric.update(&predictions, (&Tensor::from_host(&queue, &values, shape)?).into())?;
            }
            assert_close(metric.compute()?, wanted);
            // What it was asked for stays when it starts anew.
            let mut fresh = metric.fresh()?;
            assert!(fresh.compute().is_err());
            let all = Tensor::from_host(&queue, &scores(0..SAMPLES), [SAMPLES])?;
            fresh.update(&all, (&positive(0..SAMPLES)).into())?;
            assert_close(fresh.compute()?, wanted);
        }
    }
    Ok(())
}

#[test]
fn targets_of_every_form_and_shape_say_the_same() -> Result<()> {
    let queue = manager().cpu().queue;
    let plain = Tensor::from_host(&queue, &logits(0..20), [20, 4])?;
    let text = reshape(&plain, [4, 5, 4])?; // (N, T, C), T is not C
    let classes_second = permute(&text, &[0, 2, 1])?; // (N, C, T)
    let host = labels(0..20);
    let index = IndexTensor::from_host(&queue, &host, [20])?;
    let index_of_text = IndexTensor::from_host(&queue, &host, [4, 5])?;
    let floats: Vec<f32> = host.iter().map(|&label| label as f32).collect();
    let float = Tensor::from_host(&queue, &floats, [20])?;
    let one_hot: Vec<f32> = host.iter().flat_map(|&l| (0..4).map(move |c| f32::from(u8::from(c == l)))).collect();
    let soft = Tensor::from_host(&queue, &one_hot, [20, 4])?;
    for name in ["accuracy", "top3", "f1", "confusion_matrix", "auroc", "perplexity"] {
        let of = |predictions: &Tensor, target: Target<'_>| -> Result<f64> {
            let mut metric = metric_from_name(name)?;
            metric.update(predictions, target)?;
            metric.compute()
        };
        let wanted = of(&plain, (&host).into())?;
        assert_close(of(&plain, (&index).into())?, wanted);
        assert_close(of(&plain, (&float).into())?, wanted);
        assert_close(of(&plain, (&soft).into())?, wanted);
        for predictions in [&text, &classes_second] {
            assert_close(of(predictions, (&host).into())?, wanted);
            assert_close(of(predictions, (&index_of_text).into())?, wanted);
        }
        // Autocast must not make counts narrow, nor gradients be recorded.
        let _scope = autocast(DType::F16)?;
        assert_close(of(&plain.detach().with_grad(), (&index).into())?, wanted);
    }
    Ok(())
}

#[test]
fn ignored_samples_count_for_nothing() -> Result<()> {
    let queue = manager().cpu().queue;
    let all = Tensor::from_host(&queue, &logits(0..SAMPLES), [SAMPLES, 4])?;
    let first = Tensor::from_host(&queue, &logits(0..15), [15, 4])?;
    let mut padded = labels(0..SAMPLES);
    padded[15..].fill(-100);
    for name in ["accuracy", "top2", "precision", "recall", "f1", "confusion_matrix", "auroc", "perplexity"] {
        let (mut one, mut other) = (metric_from_name(name)?, metric_from_name(name)?);
        one.update(&all, (&padded).into())?;
        other.update(&first, (&labels(0..15)).into())?;
        assert_close(one.compute()?, other.compute()?);
    }
    // A class may be the ignored label: a guess of it is not right by chance.
    let mut accuracy = Accuracy::new(LabelOptions { ignore_index: Some(0), ..LabelOptions::default() });
    let logits = Tensor::from_host(&queue, &[1.0f32, 0.0, 1.0, 0.0, 0.0, 1.0], [3, 2])?;
    accuracy.update(&logits, (&[0, 1, 1]).into())?;
    assert_eq!(accuracy.compute()?, 0.5);
    Ok(())
}

/// A captured step refuses to read, so this also shows that no update does. On the native CPU alone: PoCL takes half a minute to build
/// the kernels.
#[test]
fn updates_can_be_captured_and_replayed() -> Result<()> {
    let queue = manager().cpu().queue;
    for name in ["accuracy", "top2", "f1", "confusion_matrix", "perplexity", "mae", "rmse"] {
        let mut eager = metric_from_name(name)?;
        let mut captured = metric_from_name(name)?;
        let batch = |rows: std::ops::Range<usize>| -> Result<[Tensor; 2]> {
            let numbers = |values: Vec<f32>, shape: &[usize]| Tensor::from_host(&queue, &values, shape.to_vec());
            let target = labels(rows.clone()).into_iter().map(|label| label as f32).collect();
            match name {
                "mae" | "rmse" => Ok([numbers(scores(rows.clone()), &[rows.len()])?, numbers(target, &[rows.len()])?]),
                _ => Ok([numbers(logits(rows.clone()), &[rows.len(), 4])?, numbers(target, &[rows.len()])?]),
            }
        };
        let [x, y] = batch(0..5)?;
        eager.update(&x, (&y).into())?;
        // The first batch makes the state, outside of the capture.
        captured.update(&x, (&y).into())?;
        assert!(captured.can_capture());
        let mut step = capture(|(x, y): &(Tensor, Tensor)| -> Result<Tensor> {
            captured.update(x, y.into())?;
            Ok(x.clone())
        });
        for rows in [5..10, 10..15, 15..20, 20..23] {
            let [x, y] = batch(rows)?;
            eager.update(&x, (&y).into())?;
            step.call(&(x, y))?;
        }
        assert_eq!(step.recordings(), 2, "one for each size of batch");
        drop(step);
        assert_eq!(captured.compute()?, eager.compute()?, "{name}");
    }
    assert!(!Auroc::default().can_capture());
    Ok(())
}

/// Adding the sums of two ranks gives the figure of all samples.
#[test]
fn sums_are_added_over_ranks() -> Result<()> {
    let queue = manager().cpu().queue;
    for name in ["accuracy", "precision", "confusion_matrix", "perplexity"] {
        let mut ranks = [metric_from_name(name)?, metric_from_name(name)?];
        for (rank, rows) in ranks.iter_mut().zip([0..16, 16..SAMPLES]) {
            let predictions = Tensor::from_host(&queue, &logits(rows.clone()), [rows.len(), 4])?;
            rank.update(&predictions, (&labels(rows)).into())?;
        }
        for (mut mine, other) in ranks[0].sums().into_iter().zip(ranks[1].sums()) {
            mine.add_(&other)?;
        }
        assert_close(ranks[0].compute()?, over_batches(&mut *metric_from_name(name)?, &queue)?);
    }
    Ok(())
}

#[test]
fn errors_name_the_metric_and_the_shapes() -> Result<()> {
    let queue = manager().cpu().queue;
    let logits = Tensor::from_host(&queue, &logits(0..6), [6, 4])?;
    let text = |name: &str, predictions: &Tensor, target: Target<'_>| -> String {
        let result = metric_from_name(name).and_then(|mut metric| metric.update(predictions, target));
        result.map_or_else(|error| error.to_string(), |()| "no error".to_owned())
    };
    let wrong = text("accuracy", &logits, (&[0, 1]).into());
    assert!(wrong.starts_with("accuracy: got predictions of shape (6, 4) and 2 labels"), "{wrong}");
    let wrong = text("f1", &logits, (&[0, 1, 2, 3, 4, 0]).into());
    assert!(wrong.starts_with("f1: label 4 of sample 4 is outside 0..4"), "{wrong}");
    let wrong = text("top9", &logits, (&[0, 1, 2, 3, 3, 0]).into());
    assert!(wrong.starts_with("top9: the predictions of shape (6, 4) have 4 per sample"), "{wrong}");
    let wrong = text("mse", &logits, (&Tensor::from_shape(&queue, [6], DType::F32)?).into());
    assert!(wrong.starts_with("mse: got predictions of shape (6, 4) and targets of shape (6,)"), "{wrong}");
    assert!(metric_from_name("top0").is_err());
    // On a device labels are not looked at before the figure is read.
    let mut recall = score(Score::Recall, Average::Macro);
    recall.update(&logits, (&IndexTensor::from_host(&queue, &[0i64, 1, 2, 9, 3, 0], [6])?).into())?;
    assert!(recall.compute().is_err_and(|error| error.to_string().contains("outside 0..4")));
    let mut accuracy = Accuracy::default();
    let of_three = Tensor::from_shape(&queue, [6, 3], DType::F32)?;
    recall.reset()?;
    assert!(recall.update(&of_three, (&[0; 6]).into()).is_err_and(|error| error.to_string().contains("3 classes")));
    accuracy.update(&of_three, (&[0; 6]).into())?;
    Ok(())
}
