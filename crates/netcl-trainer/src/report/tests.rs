use std::collections::BTreeMap;

use serde_json::Value;

use super::*;
use crate::trainer::{Epoch, Step};

/// Names that would break out of any place of a page where they stand as they are.
const HOSTILE: [&str; 6] = [
    "</script><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "<!--script-->",
    "<!-- <script>",
    "a & b\u{2028}\u{0}",
    "{{title}} ${x} \\u003c",
];

fn epoch(epoch: usize, values: &[(&str, f64)]) -> Epoch {
    let values: BTreeMap<String, f64> = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    Epoch { epoch, steps: epoch * 10, samples: 320, seconds: 0.5, values }
}

fn run(title: &str, epochs: usize) -> RunContent {
    let step = |step: usize| Step { step, epoch: (step - 1) / 10 + 1, loss: 1.0 / step as f64, lr: 0.01, samples: 32 };
    let history = History {
        steps: (1..=epochs * 10).map(step).collect(),
        epochs: (1..=epochs).map(|n| epoch(n, &[("loss", 1.0 / n as f64), ("val_accuracy", 0.5)])).collect(),
    };
    RunContent { title: title.to_owned(), history, ..RunContent::default() }
}

/// The data block of a page whose tags are all closed and which loads nothing.
fn data(page: &str) -> Value {
    for tag in ["html", "head", "body", "main", "style", "title"] {
        let (open, close) = (page.matches(&format!("<{tag}")).count(), page.matches(&format!("</{tag}>")).count());
        assert_eq!((open, close), (1, 1), "{tag}");
    }
    assert_eq!((page.matches("<script").count(), page.matches("</script>").count()), (2, 2));
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    for address in ["http:", "https:", "src=\"", "<link", "@import", "url(h", "fetch("] {
        assert!(!outside.contains(address), "the page loads something: {address}");
    }
    assert!(!page.contains("<!--"), "every place is filled in");
    let (_, rest) = page.split_once(DATA_TAG).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn names_of_users_cannot_become_html() {
    for name in HOSTILE {
        let content = RunContent {
            title: name.to_owned(),
            device: name.to_owned(),
            notes: vec![name.to_owned()],
            settings: vec![(name.to_owned(), name.to_owned())],
            classification: Some(Classification {
                classes: vec![name.to_owned(), "b".to_owned()],
                confusion: vec![vec![1, 2], vec![3, 4]],
                mistakes: vec![PicturedMistake { name: name.to_owned(), guess: 1, ..PicturedMistake::default() }],
            }),
            samples: vec![TextSample { prompt: name.to_owned(), text: name.to_owned() }],
            layers: vec![Layer { name: name.to_owned(), kind: name.to_owned(), ..Layer::default() }],
            ..run(name, 1)
        };
        let page = html(std::slice::from_ref(&content)).unwrap();
        let found = &data(&page.replace("<title>&lt;!--", "<title>"))["runs"][0];
        assert_eq!(found["title"], name);
        assert_eq!(found["classification"]["classes"][0], name);
        assert_eq!(found["samples"][0]["text"], name);
        assert!(page.contains(&format!("<title>{}</title>", escaped(name))));
    }
}

#[test]
fn an_empty_run_one_epoch_and_three_runs_are_pages() {
    let empty = data(&html(&[RunContent::default()]).unwrap());
    assert_eq!(empty["runs"][0]["history"]["steps"]["loss"], serde_json::json!([]));
    let one = data(&html(&[run("a", 1)]).unwrap());
    assert_eq!(one["runs"][0]["history"]["epochs"][0]["values"]["val_accuracy"], 0.5);
    let three = data(&html(&[run("a", 1), run("b", 2), run("c", 3)]).unwrap());
    assert_eq!(three["runs"].as_array().unwrap().len(), 3);
    assert_eq!(data(&html(&[]).unwrap())["runs"], serde_json::json!([]));
}

#[test]
fn numbers_that_json_lacks_are_gaps_and_many_steps_are_thinned() {
    let mut content = run("a", 1);
    content.history.steps[3].loss = f64::NAN;
    content.history.epochs[0].values.insert("loss".to_owned(), f64::INFINITY);
    let found = data(&html(&[content]).unwrap());
    assert_eq!(found["runs"][0]["history"]["steps"]["loss"][3], Value::Null);
    assert_eq!(found["runs"][0]["history"]["epochs"][0]["values"]["loss"], Value::Null);

    let mut long = run("long", 5000);
    long.history.steps[31_234].loss = 77.0;
    let found = data(&html(&[long]).unwrap());
    let losses = found["runs"][0]["history"]["steps"]["loss"].as_array().unwrap();
    assert!(losses.len() <= 6000 && losses.iter().any(|loss| loss == 77.0), "a spike is kept: {}", losses.len());
}

#[test]
fn what_cannot_be_shown_is_left_out() {
    let picture = data_uri(&[1, 2, 3]);
    let mistake = |guess: usize, image: &str| PicturedMistake { guess, image: image.to_owned(), ..Default::default() };
    let classes = vec!["a".to_owned(), "b".to_owned()];
    let images = [picture.as_str(), "https://example.org/a.png", "data:text/html,x", "data:image/png;base64,a\"b"];
    let mut mistakes: Vec<PicturedMistake> = images.iter().map(|image| mistake(1, image)).collect();
    mistakes.push(mistake(2, &picture));
    let classification = Classification { classes, confusion: vec![vec![1, 2], vec![3, 4]], mistakes };
    let mut content = RunContent { classification: Some(classification), ..run("a", 1) };
    let found = data(&html(std::slice::from_ref(&content)).unwrap());
    let shown: Vec<&str> = found["runs"][0]["classification"]["mistakes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mistake| mistake["image"].as_str().unwrap())
        .collect();
    assert_eq!(shown, [picture.as_str(), "", "", ""], "no other address, and no class that does not exist");

    content.classification.as_mut().unwrap().confusion.pop();
    let found = data(&html(&[content]).unwrap());
    assert_eq!(found["runs"][0]["classification"], Value::Null);
    assert!(found["runs"][0]["notes"][0].as_str().unwrap().contains("1 rows for 2 classes"));
}

#[test]
fn text_of_a_language_model_brings_the_perplexity() {
    let sample = TextSample { prompt: "To be".to_owned(), text: ", or not".to_owned() };
    let found = data(&html(&[RunContent { samples: vec![sample], ..run("gpt", 1) }]).unwrap());
    let perplexity = found["runs"][0]["history"]["epochs"][0]["values"]["perplexity"].as_f64().unwrap();
    assert!((perplexity - std::f64::consts::E).abs() < 1e-4, "{perplexity}");
}

#[test]
fn folders_are_read_also_where_files_are_damaged() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run <1>");
    std::fs::create_dir(&folder).unwrap();
    let refused = |path: &Path| read(path).unwrap_err().to_string();
    assert!(refused(&folder).contains("holds no run"), "{}", refused(&folder));
    assert!(refused(&place.path().join("none")).contains("does not exist"));

    let lines = [
        r#"{"kind":"step","step":1,"epoch":1,"loss":2.5,"accuracy":0.1,"lr":0.01,"images":32}"#,
        "{ this is no JSON",
        "[1, 2]",
        r#"{"kind":"step","step":2,"epoch":1,"loss":null,"lr":0.01,"samples":32}"#,
        r#"{"kind":"epoch","epoch":1,"steps":2,"loss":2.0,"test_loss":1.5,"seconds":0.5}"#,
        r#"{"epoch":2,"steps":4,"samples":64,"seconds":0.5,"values":{"loss":1.0,"val_f1":0.5}}"#,
        r#"{"kind":"step","step":5,"epo"#,
    ];
    let metrics = folder.join("metrics.jsonl");
    std::fs::write(&metrics, lines.join("\n")).unwrap();
    let found = read(&folder).unwrap();
    assert_eq!(found.title, "run <1>");
    assert_eq!((found.history.steps.len(), found.history.epochs.len()), (2, 2));
    assert!(found.history.steps[1].loss.is_nan() && found.history.steps[0].samples == 32);
    assert_eq!(found.history.epochs[0].values["val_loss"], 1.5);
    assert_eq!(found.history.epochs[1].values["val_f1"], 0.5);
    assert_eq!([found.history.epochs[0].samples, found.history.epochs[1].samples], [64, 64]);
    let notes = found.notes.join(" ");
    assert!(notes.contains("2 lines are damaged and left out, the first is line 2"), "{notes}");
    assert!(notes.contains("Not finished: 2 epochs are done; it was stopped"), "{notes}");
    std::fs::write(folder.join(".lock"), "").unwrap();
    assert!(read(&folder).unwrap().notes.join(" ").contains("still going on"));

    // The rest comes from the report; where that cannot be read, the page says so.
    let classification = Classification { classes: vec!["a".into()], confusion: vec![vec![3]], mistakes: vec![] };
    let whole = RunContent { classification: Some(classification), device: "a GPU".into(), ..run("whole", 1) };
    let report = folder.join("report.html");
    write(&report, std::slice::from_ref(&whole)).unwrap();
    let again = read(&folder).unwrap();
    assert_eq!((again.classification.as_ref(), again.device.as_str()), (whole.classification.as_ref(), "a GPU"));
    assert_eq!(again.history.epochs.len(), 2, "the file of metrics is newer");
    std::fs::remove_file(&metrics).unwrap();
    assert_eq!(read(&folder).unwrap().history.epochs, whole.history.epochs);
    for damaged in ["", "<html>", &format!("{DATA_TAG}{{\"runs\": 7}}</script>"), &format!("{DATA_TAG}{{\"runs\"")] {
        std::fs::write(&report, damaged).unwrap();
        assert!(read(&folder).unwrap().notes[0].contains("report.html cannot be used"), "{damaged}");
    }
}

#[test]
fn base64_is_that_of_the_standard() {
    let cases =
        [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")];
    for (plain, encoded) in cases {
        assert_eq!(base64(plain.as_bytes()), encoded);
    }
}
