//! Host and device agree: every transform, compositions, mixing, uploads, on every device there is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test should panic")]

use std::rc::Rc;
use std::time::{Duration, Instant};

use netcl_augment::{Augment, Error, OnDevice, Uploader, apply_steps, mix, on_device};
use netcl_core::backend::Queue;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch;
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_data::transforms::{Border, Compose, Image, Mix, MixStep, Step, Transform, blur};
use netcl_data::{Array, DataLoader, Dataset, ImageSplits, ListDataset, Random, Sample, filters};

/// The native CPU and every OpenCL device; a machine without one fails the run where everything must be tested.
fn devices() -> Vec<DeviceHandle> {
    let found = manager().discover().unwrap();
    assert!(
        !found.is_empty() || std::env::var_os("CI").is_none(),
        "CI needs an OpenCL device: install pocl-opencl-icd"
    );
    std::iter::once(manager().cpu()).chain(found.iter().map(|device| manager().handle(device).unwrap())).collect()
}

/// Colours from 0 to 1, with both ends among them.
fn pixels(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * i * 7 + i * 13) % 256) as f32 / 255.0).collect()
}

/// The changed images of the host and of a device.
fn compare(queue: &Queue, shape: [usize; 3], steps: &[Vec<Step>], what: &str) {
    let size: usize = shape.iter().product();
    let pixels = pixels(steps.len() * size);
    let images = Tensor::from_host(queue, &pixels, [steps.len(), shape[0], shape[1], shape[2]]).unwrap();
    let changed = apply_steps(&images, steps).unwrap_or_else(|error| panic!("{what}: {error}"));
    let result = changed.to_host::<f32>().unwrap();
    let expected: Vec<f32> = (pixels.chunks_exact(size).zip(steps))
        .flat_map(|(pixels, steps)| {
            Step::apply_all(steps, Image::new(pixels.to_vec(), shape).unwrap()).pixels().to_vec()
        })
        .collect();
    assert_eq!(result.len(), expected.len(), "{what}");
    for (at, (x, y)) in result.iter().zip(&expected).enumerate() {
        assert!((x - y).abs() <= 1e-5, "{what} on {}, {shape:?}: {at} is {x}, on the host {y}", queue.device_name());
    }
}

const ZERO: Border = Border::Constant(0.0);

fn transforms(channels: usize) -> Vec<Transform> {
    let share = (0.2, 0.8);
    let ratio = (0.7, 1.4);
    vec![
        Transform::HorizontalFlip { probability: 0.5 },
        Transform::VerticalFlip { probability: 0.5 },
        Transform::Crop { size: [7, 5], padding: 3, border: Border::Constant(0.3) },
        Transform::Crop { size: [16, 18], padding: 4, border: Border::Reflect },
        Transform::CenterCrop { size: [6, 20] },
        Transform::RandomResizedCrop { size: [10, 9], area: share, ratio },
        Transform::Rotation { degrees: 40.0, border: Border::Edge },
        Transform::Affine { degrees: 15.0, translate: [0.2, 0.1], scale: (0.6, 1.5), shear: 12.0, border: ZERO },
        Transform::ColorJitter { brightness: 0.5, contrast: 0.5, saturation: 0.5, hue: 0.4 },
        Transform::GaussianBlur { taps: 5, sigma: (0.3, 2.0) },
        Transform::GaussianBlur { taps: 31, sigma: (3.0, 8.0) },
        Transform::Erase { probability: 0.7, area: share, ratio, value: 0.4 },
        Transform::Cutout { side: 5, value: 0.0 },
        Transform::Normalize { mean: vec![0.4; channels], deviation: vec![0.3; channels] },
        Transform::RandAugment { operations: 3, magnitude: 14, border: ZERO },
    ]
}

#[test]
fn every_transform_agrees_with_the_host() {
    for device in devices() {
        for shape in [[3, 11, 13], [1, 9, 14], [3, 1, 1]] {
            let mut all: Vec<(String, Vec<Transform>)> =
                transforms(shape[0]).into_iter().map(|transform| (format!("{transform:?}"), vec![transform])).collect();
            // All that keep the size, in this order and backwards; and what training uses.
            let mut kept = transforms(shape[0]);
            kept.retain(|t| !matches!(t, Transform::Crop { .. } | Transform::CenterCrop { .. }));
            all.push(("all".to_owned(), kept.clone()));
            kept.reverse();
            all.push(("all, backwards".to_owned(), kept));
            for (what, transforms) in all {
                let compose = Compose::new(transforms).unwrap();
                let steps: Vec<_> = (0..9).map(|seed| compose.draw(shape, &mut Random::new(seed)).unwrap()).collect();
                compare(&device.queue, shape, &steps, &what);
            }
        }
    }
}

/// Also those that random transforms make rarely, each after a change that leaves no round numbers.
#[test]
fn every_step_agrees_with_the_host() {
    let before = Step::Blur(blur::gaussian(3, 0.7));
    let steps: Vec<Vec<Step>> = [
        Step::Brightness(1.7),
        Step::Contrast(0.3),
        Step::Contrast(1.9),
        Step::Saturation(1.8),
        Step::Hue(-0.37),
        Step::Hue(0.5),
        Step::Blur(blur::gaussian(7, 1.3)),
        Step::Sharpness(1.9),
        Step::Sharpness(0.1),
        Step::Posterize(3),
        Step::Posterize(0),
        Step::Solarize(0.5),
        Step::AutoContrast,
        Step::Equalize,
        Step::Erase { rectangle: [2, 3, 100, 4], value: -1.0 },
        Step::Normalize { mean: vec![0.1, 0.2, 0.3], deviation: vec![0.4, 0.5, 0.7] },
    ]
    .into_iter()
    .map(|step| vec![before.clone(), step])
    .collect();
    // Large enough to equalize, and of more channels than colours where that is allowed.
    for device in devices() {
        compare(&device.queue, [3, 37, 41], &steps, "steps");
        compare(&device.queue, [1, 37, 41], &steps, "steps");
        compare(&device.queue, [5, 8, 9], &steps[..1], "five channels");
        compare(&device.queue, [3, 33, 20], &[vec![Step::AutoContrast], vec![Step::Equalize]], "statistics");
    }
}

#[test]
fn bytes_views_and_half_floats_are_taken() {
    let bytes: Vec<u8> = (0..2 * 3 * 4 * 5).map(|i| (i * 37 % 256) as u8).collect();
    for device in devices() {
        let images = Tensor::from_host(&device.queue, &bytes, [2, 3, 4, 5]).unwrap();
        let changed = apply_steps(&images, &[vec![], vec![Step::Brightness(0.5)]]).unwrap();
        let expected: Vec<f32> = bytes.iter().map(|&byte| f32::from(byte) / 255.0).collect();
        let result = changed.to_host::<f32>().unwrap();
        assert_eq!(result[..60], expected[..60]);
        assert_eq!(result[60], 0.5 * expected[60]);
        // The second image, as a view.
        let view = images.slice(0, Slice::new(Some(1), None, 1)).unwrap();
        assert_eq!(apply_steps(&view, &[vec![]]).unwrap().to_host::<f32>().unwrap(), expected[60..]);
        let half = changed.cast(DType::F16).unwrap();
        let doubled = apply_steps(&half, &[vec![Step::Brightness(2.0)], vec![]]).unwrap();
        assert!((doubled.to_host::<f32>().unwrap()[1] - (2.0 * expected[1]).min(1.0)).abs() < 2e-3);
    }
}

#[test]
fn what_is_pointwise_or_geometric_is_one_launch() {
    for device in devices() {
        let compose = Compose::new(vec![
            Transform::Crop { size: [8, 8], padding: 2, border: ZERO },
            Transform::HorizontalFlip { probability: 0.5 },
            Transform::ColorJitter { brightness: 0.4, contrast: 0.0, saturation: 0.4, hue: 0.1 },
            Transform::Erase { probability: 0.5, area: (0.1, 0.3), ratio: (0.5, 2.0), value: 0.0 },
            Transform::Normalize { mean: vec![0.5; 3], deviation: vec![0.25; 3] },
        ]);
        let augment = Augment::new(compose.unwrap(), 3);
        let images = Tensor::from_host(&device.queue, &pixels(6 * 3 * 64), [6, 3, 8, 8]).unwrap();
        let counter = Rc::new(launch::Counter::default());
        let changed = launch::with_sink(counter.clone(), || augment.apply(&images, 0, &[0, 1, 2, 3, 4, 5]));
        assert_eq!((counter.launches(), counter.of("augment")), (1, 1), "{:?}", counter.names());
        assert_eq!(changed.unwrap().shape()[..], [6, 3, 8, 8]);
    }
}

/// A loader with transforms, and a loader without whose batches are changed on the device.
#[test]
fn the_same_seed_epoch_and_numbers_give_the_same_images() {
    let data = ImageSplits::digits().unwrap().truncated(40, 1).train;
    let compose = Compose::new(vec![
        Transform::Affine { degrees: 10.0, translate: [0.1; 2], scale: (0.9, 1.1), shear: 0.0, border: ZERO },
        Transform::RandAugment { operations: 2, magnitude: 9, border: ZERO },
    ])
    .unwrap();
    let loader = |augmented: bool| {
        let loader = DataLoader::of(data.clone()).batch_size(40).seed(7);
        if augmented { loader.transform(compose.clone().on_field(0)).build() } else { loader.build() }.unwrap()
    };
    let images = |sample: &Sample| sample.get(0).and_then(Sample::array).unwrap().clone();
    let first = |augmented, epoch| images(&loader(augmented).epoch(epoch).unwrap().next().unwrap().unwrap());
    let augment = Augment::new(compose.clone(), 7);
    let indices: Vec<usize> = (0..40).collect();
    let (expected, plain) = (first(true, 3).to_f32(), first(false, 3));
    for device in devices() {
        let batch = Tensor::from_host(&device.queue, plain.slice::<u8>().unwrap(), [40, 1, 8, 8]).unwrap();
        let result = augment.apply(&batch, 3, &indices).unwrap().to_host::<f32>().unwrap();
        assert!(result.iter().zip(&expected).all(|(x, y)| (x - y).abs() <= 1e-5));
        assert_eq!(augment.apply(&batch, 3, &indices).unwrap().to_host::<f32>().unwrap(), result);
        assert_ne!(augment.apply(&batch, 4, &indices).unwrap().to_host::<f32>().unwrap(), result);
        let other = Augment::new(compose.clone(), 8).apply(&batch, 3, &indices).unwrap();
        assert_ne!(other.to_host::<f32>().unwrap(), result);
    }
}

#[test]
fn mixing_agrees_with_the_host() {
    let images = Array::new(pixels(3 * 2 * 5 * 7), &[3, 2, 5, 7]).unwrap();
    let labels = filters::one_hot(&Array::line(vec![2i64, 0, 1]), 4).unwrap();
    for device in devices() {
        let upload = |array: &Array| {
            Tensor::from_host(&device.queue, array.slice::<f32>().unwrap(), array.shape().to_vec()).unwrap()
        };
        for seed in 0..6 {
            for method in [Mix::Mixup { alpha: 0.4 }, Mix::CutMix { alpha: 1.0 }] {
                let step = method.draw([5, 7], &mut Random::new(seed)).unwrap();
                let expected = step.apply(images.clone(), labels.clone()).unwrap();
                let (mixed, shares) = mix(step, &upload(&images), &upload(&labels)).unwrap();
                for (result, expected) in [(mixed, expected.0), (shares, expected.1)] {
                    let result = result.to_host::<f32>().unwrap();
                    let expected = expected.slice::<f32>().unwrap();
                    assert!(result.iter().zip(expected).all(|(x, y)| (x - y).abs() <= 1e-6), "{method:?} {seed}");
                }
            }
        }
        let step = MixStep { lambda: 0.5, rectangle: None };
        assert!(mix(step, &upload(&images), &upload(&images)).unwrap_err().to_string().contains("(count, classes)"));
    }
}

#[test]
fn what_cannot_be_a_batch_is_refused() {
    let queue = manager().cpu().queue;
    let images = Tensor::from_host(&queue, &pixels(2 * 64), [2, 1, 8, 8]).unwrap();
    let text = |result: Result<Tensor, Error>| result.unwrap_err().to_string();
    let augment = Augment::new(Compose::new(vec![Transform::CenterCrop { size: [2, 2] }]).unwrap(), 0);
    assert!(text(augment.apply(&images, 0, &[1])).contains("2 images need as many indices, got 1"));
    let flat = Tensor::from_host(&queue, &pixels(4), [4]).unwrap();
    assert!(text(augment.apply(&flat, 0, &[1])).contains("(count, channels, height, width)"));
    let normalize = Transform::Normalize { mean: vec![0.0; 3], deviation: vec![1.0; 3] };
    let normalize = Augment::new(Compose::new(vec![normalize]).unwrap(), 0);
    assert!(text(normalize.apply(&images, 0, &[5, 6])).contains("sample 5: Normalize"));
    let empty = Tensor::from_shape(&queue, [0, 1, 8, 8], DType::F32).unwrap();
    assert_eq!(augment.apply(&empty, 0, &[]).unwrap().size(), 0);
}

#[test]
fn batches_arrive_with_their_fields_and_types() {
    for device in devices() {
        let uploader = Uploader::new(&device.queue);
        // More batches than there is staging memory for.
        for round in 0..6u8 {
            let batch = Sample::dict([
                ("image", Array::new(vec![round; 12], &[2, 6]).unwrap().into()),
                ("x", Array::line(vec![f32::from(round), 0.5]).into()),
                ("more", Sample::list([Array::line(vec![-3i16, 4]).into(), Array::line(vec![true, false]).into()])),
                ("name", "a".into()),
                ("one", Sample::from(9u64)),
            ]);
            let batch = uploader.upload(batch).unwrap();
            let field = |name: &str| batch.field(name).unwrap().tensor().unwrap();
            assert_eq!(field("image").to_host::<u8>().unwrap(), [round; 12]);
            assert_eq!(field("x").to_host::<f32>().unwrap(), [f32::from(round), 0.5]);
            assert_eq!((field("one").shape().ndim(), field("one").to_host::<i64>().unwrap()), (0, vec![9]));
            let more = |at| batch.field("more").unwrap().get(at).unwrap().tensor().unwrap();
            assert_eq!(more(0).to_host::<i64>().unwrap(), [-3, 4]);
            assert_eq!(more(1).to_host::<u8>().unwrap(), [1, 0]);
        }
        let large = uploader.upload(Array::line(vec![u64::MAX]).into());
        assert!(large.unwrap_err().to_string().contains("above the largest int64"));
    }
}

#[test]
fn an_epoch_arrives_in_order_with_its_errors_and_its_end() {
    let data = || {
        let samples = (0..10i64).map(|i| if i == 5 { Sample::from("text") } else { Sample::from(i) }).collect();
        DataLoader::of(ListDataset::<Sample>(samples)).batch_size(2)
    };
    for device in devices() {
        for workers in [0, 2] {
            let loader = data().workers(workers).build().unwrap();
            let mut batches = on_device(loader.epoch(0).unwrap(), &device.queue).unwrap();
            let mut seen = Vec::new();
            for (at, batch) in batches.by_ref().enumerate() {
                match batch {
                    Ok(batch) => seen.extend(batch.tensor().unwrap().to_host::<i64>().unwrap()),
                    Err(error) => assert!(at == 2 && error.to_string().contains("samples are 4, 5"), "{error}"),
                }
            }
            assert_eq!(seen, [0, 1, 2, 3, 6, 7, 8, 9]);
            assert!(batches.next().is_none() && batches.state().samples == 10);
            // Left in the middle: what was not handed over does not count.
            let mut batches = on_device(loader.epoch(0).unwrap(), &device.queue).unwrap();
            batches.next().unwrap().unwrap();
            assert_eq!(batches.state().samples, 2);
        }
    }
    let loader = data().build().unwrap();
    let mut broken = OnDevice::with(loader.epoch(0).unwrap(), |_| -> Result<(), Error> { panic!("no") }).unwrap();
    assert_eq!(broken.next().unwrap().unwrap_err().to_string(), "a worker panicked: no");
    assert!(broken.next().is_none());
}

/// A loader that takes as long as the step: one after the other they would take twice as long.
#[test]
fn batches_are_made_beside_the_step() {
    struct Slow;
    impl Dataset for Slow {
        type Item = Sample;
        fn len(&self) -> usize {
            20
        }
        fn get(&self, index: usize) -> netcl_data::Result<Sample> {
            std::thread::sleep(STEP);
            Ok(Sample::from(index as i64))
        }
    }
    const STEP: Duration = Duration::from_millis(20);
    let loader = DataLoader::of(Slow).build().unwrap();
    let started = Instant::now();
    let batches = on_device(loader.epoch(0).unwrap(), &manager().cpu().queue).unwrap();
    assert_eq!(batches.inspect(|_| std::thread::sleep(STEP)).count(), 20);
    // 1.05 times the step on an idle machine.
    assert!(started.elapsed() < STEP * 20 * 3 / 2, "{:?}", started.elapsed());
}
