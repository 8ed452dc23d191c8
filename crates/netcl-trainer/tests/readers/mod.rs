//! Every file reader with damaged and hostile files: no panic, no hang, no more memory than the limits allow.

#[path = "../../../netcl-io/tests/all/damage.rs"]
mod damage;
#[path = "../../../netcl-io/tests/all/memory.rs"]
mod memory;

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use flate2::{Compression, Crc, write::GzEncoder};
use netcl_data::{Picture, catalog, idx};
use netcl_io::npy::{Content, parse, text_to_npy};
use netcl_io::{Archive, Array, Checkpoint, load_weights};
use netcl_nn::autograd::{DType, Generator};
use netcl_optim::{AdamW, AdamWOptions, Optimizer};
use netcl_trainer::trainer::Progress;
use netcl_trainer::{Architecture, Classifier, Network, Run, Settings};
use serde_json::Value;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::{queue, train};
use damage::Damage;
use memory::peak_of;

/// What reading one small file may take: the constants of the limits (64 MiB to unpack, 16 MiB of metadata), parsed.
const MOST_MEMORY: usize = 192 << 20;
/// How long it may take on a busy machine.
const MOST_TIME: Duration = Duration::from_secs(30);

/// Hands damaged files to a reader, whose results may be whatever they like.
fn survive(name: &'static str, cases: u64, mut damaged: impl FnMut(&mut Damage) -> Vec<u8>, read: fn(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    let (finished, watch) = mpsc::channel();
    // A reader that hangs cannot be ended, but it can be named.
    let watchdog = std::thread::spawn(move || {
        let mut seed = 0;
        loop {
            match watch.recv_timeout(MOST_TIME) {
                Ok(next) => seed = next,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    eprintln!("{name} hangs with the file of seed {seed}");
                    std::process::abort();
                }
            }
        }
    });
    for seed in 0..cases {
        finished.send(seed).unwrap();
        let content = damaged(&mut Damage::new(seed));
        let path = folder.path().join(format!("{name}-{seed}"));
        std::fs::write(&path, &content).unwrap();
        let start = Instant::now();
        let call = || std::panic::catch_unwind(|| read(&path));
        let (result, peak) = peak_of(call);
        assert!(result.is_ok(), "{name} panics with the file of seed {seed}");
        // A file that is large itself may take some times its length.
        assert!(
            peak < MOST_MEMORY + 4 * content.len(),
            "{name} takes {peak} bytes for {} of seed {seed}",
            content.len()
        );
        assert!(start.elapsed() < MOST_TIME, "{name} takes {:?} for seed {seed}", start.elapsed());
        std::fs::remove_file(&path).unwrap();
    }
    drop(finished);
    watchdog.join().unwrap();
}

/// A file of compressed members.
fn pack(members: &[(String, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in members {
        zip.start_file(name.as_str(), SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// The members of a file.
fn unpack(content: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut zip = ZipArchive::new(Cursor::new(content)).unwrap();
    let count = zip.len();
    let member = |index| {
        let mut entry = zip.by_index(index).unwrap();
        let mut content = Vec::new();
        std::io::copy(&mut entry, &mut content).unwrap();
        (entry.name().unwrap().into_owned(), content)
    };
    (0..count).map(member).collect()
}

/// The text of a member.
fn text(content: &[u8]) -> String {
    match parse(content, None) {
        Ok(Content::Text(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// A file as another version of the format would have it.
pub(crate) fn of_version(content: &[u8], version: u64) -> Vec<u8> {
    let mut members = unpack(content);
    let metadata = members.iter_mut().find(|(name, _)| name.contains("__netcl_meta__")).unwrap();
    let mut value: Value = serde_json::from_str(&text(&metadata.1)).unwrap();
    value["version"] = version.into();
    metadata.1 = text_to_npy(&value.to_string());
    pack(&members, CompressionMethod::Stored)
}

/// Damage in the file, in an array, in the text of the metadata, or in one of its values; the others' checksums are right.
fn damage_archive(damage: &mut Damage, members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let method = [CompressionMethod::Stored, CompressionMethod::Deflated][damage.below(2)];
    let mut members = members.to_vec();
    let metadata = members.iter().position(|(name, _)| name.contains("__netcl_meta__")).unwrap();
    match damage.below(5) {
        0 => {
            let at = damage.below(members.len());
            // The header, more often than not.
            let length = if damage.below(3) > 0 { 128.min(members[at].1.len()) } else { members[at].1.len() };
            let damaged = damage.bytes(&members[at].1[..length]);
            members[at].1.splice(..length, damaged);
        }
        1 => {
            let damaged = damage.bytes(text(&members[metadata].1).as_bytes());
            members[metadata].1 = text_to_npy(&String::from_utf8_lossy(&damaged));
        }
        2 | 3 => {
            let value: Value = serde_json::from_str(&text(&members[metadata].1)).unwrap();
            members[metadata].1 = text_to_npy(&damage.json(&value).to_string());
        }
        _ => return damage.bytes(&pack(&members, method)),
    }
    pack(&members, method)
}

/// Runs of one step and one epoch on a few digits, and the members of their files.
struct Fixtures {
    _folder: tempfile::TempDir,
    folder: PathBuf,
}

impl Fixtures {
    fn new() -> Fixtures {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("run");
        let settings = Settings { epochs: 2, limit: Some(40), ..Settings::recommended("digits", Network::Mlp) };
        let mut run = Run::start(settings, None, &queue(), &place).unwrap();
        train(&mut run, 99);
        run.finish("a test").unwrap();
        Fixtures { _folder: folder, folder: place }
    }

    fn members(&self, name: &str) -> Vec<(String, Vec<u8>)> {
        unpack(&std::fs::read(self.folder.join(name)).unwrap())
    }
}

fn small_archive() -> Vec<(String, Vec<u8>)> {
    let place = tempfile::NamedTempFile::new().unwrap();
    let mut archive = Archive::new(serde_json::from_str(r#"{"a": [1, {"b": "c"}], "d": 0.5}"#).unwrap());
    for (name, dtype) in [("x", DType::F32), ("y.z", DType::BF16), ("0", DType::I64)] {
        archive.insert(name, Array { dtype, shape: vec![2, 3], bytes: vec![1; 6 * dtype.size()].into() });
    }
    archive.write(place.path()).unwrap();
    unpack(&std::fs::read(place.path()).unwrap())
}

fn archives(cases: u64) {
    let small = small_archive();
    survive("archive", 4 * cases, |damage| damage_archive(damage, &small), |path| drop(Archive::read(path)));
    let fixtures = Fixtures::new();
    let model = fixtures.members("model.netcl");
    survive(
        "model",
        cases,
        |damage| damage_archive(damage, &model),
        |path| {
            if let Ok(model) = Classifier::load(path, &queue()) {
                let pixels = model.description().architecture.input.iter().product();
                let _ = model.probabilities(&vec![7; pixels]);
                let _ = model.input_of(&Picture::from_pixels(2, 2, &[0, 9, 99, 255]).unwrap());
            }
        },
    );
    let checkpoint = fixtures.members("last.netcl");
    survive(
        "checkpoint",
        cases,
        |damage| damage_archive(damage, &checkpoint),
        |path| {
            let queue = queue();
            let architecture = Architecture::new(Network::Mlp, &[1, 8, 8], 10);
            let mut generator = Generator::new(0);
            let mut model = architecture.build(&queue, &mut generator).unwrap();
            let mut optimizer = AdamW::new_with(model.parameters(), AdamWOptions::default()).unwrap();
            if let Ok(checkpoint) = Checkpoint::read(path) {
                let _ = Progress::of(&checkpoint);
                let _ = checkpoint.restore(&mut *model);
                let _ = checkpoint.state("optimizer").map(|state| optimizer.load_state(&state));
            }
            let _ = load_weights(path, &mut *model);
        },
    );
    survive(
        "run",
        cases / 4,
        |damage| damage_archive(damage, &checkpoint),
        |path| {
            let Ok(mut run) = Run::resume_to(path, Some(3), None, &queue()) else { return };
            // The report is made of what the checkpoint says of the past.
            let _ = run.train(&|| false);
            let _ = run.finish("a test");
            for name in ["model.netcl", "report.html", "metrics.jsonl", "last.netcl"] {
                let _ = std::fs::remove_file(path.with_file_name(name));
            }
        },
    );
}

/// A PNG with the checksums of its chunks corrected, as far as there are chunks.
fn with_checksums(mut content: Vec<u8>) -> Vec<u8> {
    let mut at = 8;
    while let Some(length) = content.get(at..at + 4) {
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
        let Some(chunk) = content.get(at + 4..at + 8 + length) else { break };
        let mut crc = Crc::new();
        crc.update(chunk);
        let Some(sum) = content.get_mut(at + 8 + length..at + 12 + length) else { break };
        sum.copy_from_slice(&crc.sum().to_be_bytes());
        at += 12 + length;
    }
    content
}

fn pngs() -> Vec<Vec<u8>> {
    let encode = |color, depth, pixel: usize| {
        let mut content = Vec::new();
        let mut encoder = png::Encoder::new(&mut content, 9, 7);
        encoder.set_color(color);
        encoder.set_depth(depth);
        if color == png::ColorType::Indexed {
            encoder.set_palette(vec![0, 0, 0, 255, 0, 0, 0, 255, 0, 9, 9, 9]);
            encoder.set_trns(vec![255, 0]);
        }
        encoder.add_ztxt_chunk("Comment".to_owned(), "text ".repeat(100)).unwrap();
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&vec![27; (9 * pixel).div_ceil(8) * 7]).unwrap();
        writer.finish().unwrap();
        content
    };
    vec![
        encode(png::ColorType::Grayscale, png::BitDepth::Eight, 8),
        encode(png::ColorType::Indexed, png::BitDepth::Two, 2),
        encode(png::ColorType::Rgba, png::BitDepth::Sixteen, 64),
        encode(png::ColorType::GrayscaleAlpha, png::BitDepth::Eight, 16),
    ]
}

fn pictures(cases: u64) {
    let read = |path: &Path| {
        // The limit is what bounds a JPEG, whose blocks take next to no bytes.
        if let Ok(picture) = Picture::read_up_to(path, 1 << 20) {
            assert_eq!(picture.to_input(8, 8).len(), 64);
        }
    };
    let pngs = pngs();
    let damage_png = |damage: &mut Damage| {
        let mut png = pngs[damage.below(pngs.len())].clone();
        // The flag of the header that says that the picture comes in seven passes.
        png[28] = damage.below(2) as u8;
        let damaged = damage.bytes(&png);
        if damage.below(4) > 0 { with_checksums(damaged) } else { damaged }
    };
    survive("png", 2 * cases, damage_png, read);
    let baseline = include_bytes!("../../../netcl-data/tests/halves.jpg").to_vec();
    let mut progressive = baseline.clone();
    let frame = baseline.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
    progressive[frame + 1] = 0xc2;
    let jpegs = [baseline, progressive];
    let damage_jpeg = |damage: &mut Damage| {
        let which = damage.below(2);
        damage.bytes(&jpegs[which])
    };
    survive("jpeg", 2 * cases, damage_jpeg, read);
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn images() -> Vec<u8> {
    [&[0, 0, 8, 3, 0, 0, 0, 5, 0, 0, 0, 4, 0, 0, 0, 3][..], &[7; 60]].concat()
}

fn data_sets(cases: u64) {
    let damage_idx = |damage: &mut Damage| match damage.below(3) {
        0 => damage.bytes(&images()),
        1 => damage.bytes(&gzip(&images())),
        _ => {
            let damaged = damage.bytes(&images());
            gzip(&damaged)
        }
    };
    survive("idx", 2 * cases, damage_idx, |path| drop(idx::read(path)));
    survive("folder", cases, damage_idx, |path| {
        let folder = tempfile::tempdir().unwrap();
        let labels = [&[0, 0, 8, 1, 0, 0, 0, 5][..], &[0, 1, 2, 1, 0]].concat();
        for part in ["train", "t10k"] {
            std::fs::write(folder.path().join(format!("{part}-labels-idx1-ubyte")), &labels).unwrap();
            std::fs::copy(path, folder.path().join(format!("{part}-images-idx3-ubyte"))).unwrap();
        }
        let _ = catalog::load(folder.path().to_str().unwrap(), None);
    });
}

#[test]
fn damaged_archives_are_survived() {
    archives(120);
}

#[test]
fn damaged_pictures_are_survived() {
    pictures(400);
}

#[test]
fn damaged_data_sets_are_survived() {
    data_sets(300);
}

#[test]
#[ignore = "tens of thousands of files; part of --full"]
fn many_damaged_files_are_survived() {
    archives(4000);
    pictures(40_000);
    data_sets(40_000);
}

#[test]
fn files_that_unpack_to_anything_take_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb");
    let zeros = vec![0; 256 << 20];
    let refused = |read: &dyn Fn() -> String, expected: &str| {
        let (text, peak) = peak_of(read);
        assert!(text.contains(expected), "{text}");
        assert!(peak < 16 << 20, "{peak} bytes: {text}");
    };
    let read_idx = || idx::read(&path).unwrap_err().to_string();
    for (length, expected) in [(3u32, "goes on past its end"), (zeros.len() as u32, "too many for gzip data")] {
        let header = [&[0, 0, 8, 1][..], &length.to_be_bytes()].concat();
        let mut encoder = GzEncoder::new(std::fs::File::create(&path).unwrap(), Compression::fast());
        encoder.write_all(&header).unwrap();
        encoder.write_all(&zeros).unwrap();
        encoder.finish().unwrap();
        refused(&read_idx, expected);
    }
    let mut members = small_archive();
    members.push(("bomb.npy".to_owned(), zeros));
    std::fs::write(&path, pack(&members, CompressionMethod::Deflated)).unwrap();
    drop(members);
    refused(&|| Archive::read(&path).unwrap_err().to_string(), "too many for a file of");
}
