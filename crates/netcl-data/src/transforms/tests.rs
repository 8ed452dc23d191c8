//! Tests of transforms: against torchvision, and the random part of each.

use std::collections::{BTreeSet, HashMap};

use super::geometry::{Turn, stretched};
use super::*;

const ZERO: Border = Border::Constant(0.0);

/// The image of golden_transforms.py.
fn image() -> Image {
    Image::new((0..60u32).map(|i| ((i * i * 7 + i * 13) % 256) as f32 / 255.0).collect(), [3, 4, 5]).unwrap()
}

fn check(golden: &HashMap<String, Vec<f32>>, name: &str, image: Image, step: &Step) {
    let result = step.apply(image);
    let expected = &golden[name];
    assert_eq!(result.pixels().len(), expected.len(), "{name}");
    for (at, (x, y)) in result.pixels().iter().zip(expected).enumerate() {
        assert!((x - y).abs() < 2e-6, "{name}: pixel {at} is {x}, torchvision's is {y}");
    }
}

/// Written by golden_transforms.py with torchvision 0.29.
#[test]
fn steps_are_those_of_torchvision() {
    let golden = serde_json::from_str(include_str!("../../tests/golden_transforms.json")).unwrap();
    let turn = Turn { degrees: 20.0, translate: [1.0, -0.5], scale: 1.2, shear: [10.0, 5.0], corner: false };
    let paler = Image::new(image().pixels().iter().map(|x| x * 0.5 + 0.2).collect(), [3, 4, 5]).unwrap();
    let flat = (0..400u32).map(|i| (i * i % 40) as f32 / 255.0 + 0.3).collect();
    let flat = Image::new(flat, [1, 20, 20]).unwrap();
    for (name, image, step) in [
        ("affine", image(), Step::Warp(turn.warp([3, 4, 5], ZERO))),
        ("resized_crop", cropped(), Step::Warp(Warp { border: Border::Edge, ..stretched([0, 0, 2, 3], [4, 7]) })),
        ("brightness", image(), Step::Brightness(1.4)),
        ("contrast", image(), Step::Contrast(0.6)),
        ("more_contrast", image(), Step::Contrast(1.7)),
        ("saturation", image(), Step::Saturation(1.8)),
        ("hue", image(), Step::Hue(0.2)),
        ("hue_back", image(), Step::Hue(-0.35)),
        ("blur", image(), Step::Blur(blur::gaussian(5, 1.1))),
        ("sharpness", image(), Step::Sharpness(1.9)),
        ("posterize", image(), Step::Posterize(3)),
        ("solarize", image(), Step::Solarize(0.6)),
        ("autocontrast", paler, Step::AutoContrast),
        ("equalize", flat, Step::Equalize),
    ] {
        check(&golden, name, image, &step);
    }
}

/// Rows 1 and 2, columns 1 to 3: torchvision cuts first and repeats the part's border, we sample the whole image.
fn cropped() -> Image {
    let crop = Warp { map: Affine([1.0, 0.0, 1.0, 0.0, 1.0, 1.0]), size: [2, 3], border: ZERO };
    crop.apply(&image())
}

fn drawn(transform: Transform, shape: [usize; 3], seed: u64) -> Vec<Step> {
    Compose::new(vec![transform]).unwrap().draw(shape, &mut Random::new(seed)).unwrap()
}

#[test]
fn geometric_steps_become_one_sampling() {
    let compose = Compose::new(vec![
        Transform::Crop { size: [4, 4], padding: 2, border: ZERO },
        Transform::HorizontalFlip { probability: 1.0 },
        Transform::VerticalFlip { probability: 1.0 },
        Transform::Rotation { degrees: 30.0, border: ZERO },
        Transform::GaussianBlur { taps: 3, sigma: (0.5, 1.0) },
        Transform::HorizontalFlip { probability: 1.0 },
    ])
    .unwrap();
    let steps = compose.draw([3, 4, 5], &mut Random::new(4)).unwrap();
    assert!(matches!(steps[..], [Step::Warp(_), Step::Blur(_), Step::Warp(_)]), "{steps:?}");
    // One sampling is what two are where whole pixels are moved.
    let (flip, crop) = (geometry::mirrored([3, 4, 5], true), geometry::center_crop([3, 4, 5], [2, 3]));
    let (mut steps, mut shape) = (Vec::new(), [3, 4, 5]);
    add(&mut steps, &mut shape, flip);
    add(&mut steps, &mut shape, crop);
    assert_eq!((steps.len(), shape), (1, [3, 2, 3]));
    assert_eq!(Step::apply_all(&steps, image()), crop.apply(&flip.apply(&image())));
    // Another border is another sampling; a flip has none of its own.
    let edge = Transform::Crop { size: [4, 5], padding: 1, border: Border::Edge };
    let flip = Transform::HorizontalFlip { probability: 1.0 };
    let turn = Transform::Rotation { degrees: 9.0, border: ZERO };
    let black = Transform::CenterCrop { size: [4, 6] };
    let twice = Compose::new(vec![edge.clone(), black]).unwrap();
    assert_eq!(twice.draw([3, 4, 5], &mut Random::new(0)).unwrap().len(), 2);
    let compose = Compose::new(vec![edge, flip, turn]).unwrap();
    assert_eq!(compose.draw([3, 4, 5], &mut Random::new(0)).unwrap().len(), 2);
}

#[test]
fn crops_reach_every_place_and_nothing_else() {
    let image = Image::new((0..9).map(|i| i as f32 + 1.0).collect(), [1, 3, 3]).unwrap();
    let crop = Compose::new(vec![Transform::Crop { size: [3, 3], padding: 1, border: ZERO }]).unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let result = crop.apply(image.clone(), &mut Random::new(seed)).unwrap();
        seen.insert(result.pixels().iter().map(|x| *x as u32).collect::<Vec<_>>());
    }
    assert_eq!(seen.len(), 9);
    assert!(seen.contains(&vec![0, 0, 0, 0, 1, 2, 0, 4, 5]));
    // A part larger than the image contains it all.
    let large = Compose::new(vec![Transform::Crop { size: [5, 5], padding: 0, border: ZERO }]).unwrap();
    for seed in 0..20 {
        let result = large.apply(image.clone(), &mut Random::new(seed)).unwrap();
        assert_eq!(result.pixels().iter().sum::<f32>(), 45.0);
    }
    let middle = Compose::new(vec![Transform::CenterCrop { size: [1, 5] }]).unwrap();
    assert_eq!(middle.apply(image, &mut Random::new(0)).unwrap().pixels(), [0.0, 4.0, 5.0, 6.0, 0.0]);
}

#[test]
fn random_parts_have_the_area_and_proportions_asked_for() {
    for seed in 0..200 {
        let [top, left, height, width] =
            geometry::part([40, 60], (0.1, 0.5), (0.5, 2.0), &mut Random::new(seed)).unwrap();
        assert!(top + height <= 40 && left + width <= 60);
        let (area, ratio) = ((height * width) as f64 / 2400.0, width as f64 / height as f64);
        assert!((0.08..0.55).contains(&area) && (0.45..2.2).contains(&ratio), "{area} {ratio}");
    }
    // Impossible proportions: the middle.
    let resized = Transform::RandomResizedCrop { size: [8, 8], area: (1.0, 1.0), ratio: (1.0, 1.0) };
    let steps = drawn(resized, [3, 10, 20], 3);
    let Step::Warp(warp) = &steps[0] else { panic!("{steps:?}") };
    assert_eq!((warp.map, warp.size), (Affine([1.25, 0.0, 5.0, 0.0, 1.25, 0.0]), [8, 8]));
}

#[test]
fn rectangles_are_erased_inside_of_the_image() {
    let ones = Image::new(vec![1.0; 2 * 12 * 16], [2, 12, 16]).unwrap();
    let erase = Transform::Erase { probability: 1.0, area: (0.1, 0.3), ratio: (0.5, 2.0), value: 0.0 };
    let cutout = Transform::Cutout { side: 6, value: 0.0 };
    for seed in 0..100 {
        let erased = |transform: &Transform| {
            let result = Step::apply_all(&drawn(transform.clone(), [2, 12, 16], seed), ones.clone());
            let black = |plane: &[f32]| plane.iter().filter(|x| **x == 0.0).count();
            let (first, second) = result.pixels().split_at(12 * 16);
            assert_eq!(black(first), black(second));
            black(first)
        };
        assert!((12..72).contains(&erased(&erase)), "{}", erased(&erase));
        assert!((9..=36).contains(&erased(&cutout)), "{}", erased(&cutout));
    }
    assert_eq!(drawn(Transform::Cutout { side: 60000, value: 0.0 }, [1, 2, 2], 0).len(), 1);
    assert!(
        drawn(Transform::Erase { probability: 0.0, area: (0.1, 0.3), ratio: (1.0, 1.0), value: 0.0 }, [1, 8, 8], 1)
            .is_empty()
    );
}

#[test]
fn colours_change_in_any_order_and_only_where_asked() {
    let jitter = Transform::ColorJitter { brightness: 0.4, contrast: 0.4, saturation: 0.0, hue: 0.1 };
    let mut orders = BTreeSet::new();
    for seed in 0..60 {
        let steps = drawn(jitter.clone(), [3, 4, 5], seed);
        assert_eq!(steps.len(), 3);
        let letter = |step: &Step| match step {
            Step::Brightness(x) | Step::Contrast(x) => {
                assert!((0.6..=1.4).contains(x));
                if matches!(step, Step::Brightness(_)) { 'b' } else { 'c' }
            }
            Step::Hue(x) => {
                assert!((-0.1..=0.1).contains(x));
                'h'
            }
            other => panic!("{other:?}"),
        };
        orders.insert(steps.iter().map(letter).collect::<String>());
    }
    assert_eq!(orders.len(), 6);
    let two = Compose::new(vec![jitter]).unwrap().draw([2, 4, 5], &mut Random::new(0));
    assert!(two.unwrap_err().to_string().contains("2 channels has no colours"));
    let grey = Image::new(vec![0.25, 0.75], [1, 1, 2]).unwrap();
    assert_eq!(Step::Saturation(0.0).apply(Step::Hue(0.3).apply(grey.clone())), grey);
    assert_eq!(Step::Contrast(0.0).apply(grey).pixels(), [0.5, 0.5]);
}

#[test]
fn randaugment_uses_every_operation_and_keeps_colours_in_range() {
    let mut kinds = BTreeSet::new();
    for seed in 0..400 {
        let augment = Transform::RandAugment { operations: 1, magnitude: 9, border: ZERO };
        let steps = drawn(augment, [3, 4, 5], seed);
        let result = Step::apply_all(&steps, image());
        assert_eq!(result.shape(), [3, 4, 5]);
        assert!(result.pixels().iter().all(|x| (0.0..=1.0).contains(x)), "{steps:?}");
        let kind = |step: &Step| format!("{step:?}").chars().take_while(|c| c.is_alphabetic()).collect::<String>();
        kinds.insert(steps.first().map_or_else(|| "None".to_owned(), kind));
        if let Some(Step::Posterize(bits)) = steps.first() {
            assert_eq!(*bits, 7);
        }
    }
    // Five of the fourteen are maps.
    assert_eq!(kinds.len(), 10, "{kinds:?}");
}

#[test]
fn settings_out_of_range_are_named() {
    let border = ZERO;
    for wrong in [
        Transform::HorizontalFlip { probability: 1.5 },
        Transform::Crop { size: [0, 4], padding: 0, border },
        Transform::CenterCrop { size: [1 << 20, 1] },
        Transform::RandomResizedCrop { size: [4, 4], area: (0.5, 0.2), ratio: (1.0, 1.0) },
        Transform::Rotation { degrees: f64::NAN, border },
        Transform::Affine { degrees: 0.0, translate: [0.0, 2.0], scale: (1.0, 1.0), shear: 0.0, border },
        Transform::Affine { degrees: 0.0, translate: [0.0; 2], scale: (0.0, 1.0), shear: 0.0, border },
        Transform::ColorJitter { brightness: 0.0, contrast: 0.0, saturation: 0.0, hue: 0.6 },
        Transform::GaussianBlur { taps: 4, sigma: (1.0, 1.0) },
        Transform::GaussianBlur { taps: usize::MAX, sigma: (1.0, 1.0) },
        Transform::Erase { probability: 0.5, area: (0.1, 2.0), ratio: (1.0, 1.0), value: 0.0 },
        Transform::Cutout { side: usize::MAX, value: 0.0 },
        Transform::Normalize { mean: vec![0.0], deviation: vec![0.0] },
        Transform::RandAugment { operations: 2, magnitude: 31, border },
        Transform::RandAugment { operations: usize::MAX, magnitude: 1, border },
    ] {
        let text = Compose::new(vec![wrong]).unwrap_err().to_string();
        assert!(text.starts_with("transform 0 (") && text.contains("must"), "{text}");
    }
    let normalize = Transform::Normalize { mean: vec![0.0; 3], deviation: vec![1.0; 3] };
    let text = Compose::new(vec![normalize]).unwrap().draw([1, 2, 2], &mut Random::new(0)).unwrap_err().to_string();
    assert!(text.contains("1 channels, there are 3 means"), "{text}");
}

#[test]
fn the_affine_transform_stays_within_its_limits() {
    let affine =
        Transform::Affine { degrees: 10.0, translate: [0.1, 0.0], scale: (0.5, 2.0), shear: 5.0, border: ZERO };
    let mut shifted = 0;
    for seed in 0..50 {
        let steps = drawn(affine.clone(), [1, 20, 20], seed);
        let Step::Warp(Warp { map: Affine([a, b, _, d, e, _]), .. }) = steps[0] else { panic!("{steps:?}") };
        let determinant = a * e - b * d;
        assert!((0.25..=4.0).contains(&determinant), "{determinant}");
        shifted += u32::from(determinant > 1.0);
    }
    assert!((5..45).contains(&shifted), "smaller and larger: {shifted}");
}
