//! Every reader with damaged and hostile files: Ok or an error, no panic, no hang, no more memory than the limits allow.

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flate2::Crc;
use netcl_io::{Kind, Tensors, open};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::damage::Damage;
use crate::memory::peak_of;
use crate::writing::{example, write_as};

/// What reading one small file may take: the constant of what may be unpacked (64 MiB), once packed and once converted.
const MOST_MEMORY: usize = 192 << 20;
/// How long it may take on a busy machine.
const MOST_TIME: Duration = Duration::from_secs(30);
/// The variable with the number of damaged files of each kind.
const CASES: &str = "FUZZ_FILES";

fn read_everything(path: &Path) {
    let Ok(file) = open(path) else { return };
    for (index, info) in file.infos().iter().enumerate() {
        if let Ok(array) = file.read(index) {
            assert_eq!(array.bytes.len(), info.count() * array.dtype.size(), "{}", info.name);
            assert_eq!((Some(array.dtype), &array.shape), (info.dtype(), &info.shape));
            let _ = array.stats();
        }
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Good files of a kind.
fn good(kind: &str) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut files: Vec<Vec<u8>> = std::fs::read_dir(golden(""))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(kind))
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    files.sort();
    let ours = match kind {
        ".netcl" => Kind::Netcl,
        ".npz" => Kind::Npz,
        ".pt" => Kind::Torch,
        ".safetensors" => Kind::SafeTensors,
        _ => return files,
    };
    write_as(&path, &example(), ours);
    files.push(std::fs::read(&path).unwrap());
    files
}

/// The members of a ZIP file, one of them damaged, in a file whose checksums are right.
fn damage_member(damage: &mut Damage, content: &[u8]) -> Vec<u8> {
    let mut zip = ZipArchive::new(Cursor::new(content)).unwrap();
    let count = zip.len();
    let mut members: Vec<(String, Vec<u8>)> = (0..count)
        .map(|index| {
            let mut entry = zip.by_index(index).unwrap();
            let mut content = Vec::new();
            std::io::copy(&mut entry, &mut content).unwrap();
            (entry.name().unwrap().into_owned(), content)
        })
        .collect();
    // The pickle of a PyTorch file, or any.
    let pickle = members.iter().position(|(name, _)| name.ends_with("data.pkl"));
    let at = pickle.filter(|_| damage.below(4) > 0).unwrap_or_else(|| damage.below(count));
    // The header of an array, more often than not.
    let length =
        if pickle.is_none() && damage.below(3) > 0 { members[at].1.len().min(128) } else { members[at].1.len() };
    let damaged = damage.bytes(&members[at].1[..length]);
    members[at].1.splice(..length, damaged);
    let method = [CompressionMethod::Stored, CompressionMethod::Deflated][usize::from(damage.below(4) == 0)];
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in members {
        zip.start_file(name.as_str(), SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(&content).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Damage in the header of a safetensors file, whose length is then right.
fn damage_header(damage: &mut Damage, content: &[u8]) -> Vec<u8> {
    let length = u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
    let header = &content[8..8 + length];
    let header = match damage.below(2) {
        0 => damage.bytes(header),
        _ => damage.json(&serde_json::from_slice(header).unwrap()).to_string().into_bytes(),
    };
    [&(header.len() as u64).to_le_bytes()[..], &header, &content[8 + length..]].concat()
}

fn damaged(damage: &mut Damage, kind: &str, files: &[Vec<u8>]) -> Vec<u8> {
    let file = &files[damage.below(files.len())];
    match damage.below(3) {
        0 | 1 if file.starts_with(b"PK") => damage_member(damage, file),
        0 | 1 if kind == ".safetensors" => damage_header(damage, file),
        0 | 1 if kind == ".index.json" => damage.json(&serde_json::from_slice(file).unwrap()).to_string().into_bytes(),
        // The beginning of one and the end of another.
        2 if damage.below(4) == 0 => {
            let other = &files[damage.below(files.len())];
            let (to, from) = (damage.below(file.len()), damage.below(other.len()));
            [&file[..to], &other[from..]].concat()
        }
        _ => damage.bytes(file),
    }
}

fn survive(cases: u64) {
    let cases = std::env::var(CASES).map_or(cases, |cases| cases.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden("")).unwrap() {
        // For an index to find.
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    for kind in [".netcl", ".npz", ".pt", ".safetensors", ".index.json"] {
        let files = good(kind);
        let mut opened = 0;
        for seed in 0..cases {
            let content = damaged(&mut Damage::new(seed), kind, &files);
            let path = folder.path().join("damaged");
            std::fs::write(&path, &content).unwrap();
            let start = Instant::now();
            let (result, peak) = peak_of(|| std::panic::catch_unwind(|| read_everything(&path)));
            assert!(result.is_ok(), "{kind} panics with the file of seed {seed}");
            assert!(peak < MOST_MEMORY + 4 * content.len(), "{kind} takes {peak} bytes for seed {seed}");
            assert!(start.elapsed() < MOST_TIME, "{kind} takes {:?} for seed {seed}", start.elapsed());
            opened += u64::from(open(&path).is_ok());
        }
        // Damage that nobody gets past would test nothing but the first check.
        assert!(opened * 100 > cases, "only {opened} of {cases} damaged {kind} files could be opened");
    }
}

#[test]
fn damaged_files_are_survived() {
    survive(400);
}

#[test]
#[ignore = "tens of thousands of files; part of --full"]
fn many_damaged_files_are_survived() {
    survive(20_000);
}

fn refused(content: &[u8], expected: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    let (error, peak) = peak_of(|| match open(file.path()) {
        Err(error) => error.to_string(),
        Ok(file) => (0..file.infos().len()).find_map(|index| file.read(index).err()).unwrap().to_string(),
    });
    assert!(error.contains(expected), "{error} for {expected}");
    assert!(peak < (16 << 20) + 8 * content.len(), "{peak} bytes: {error}");
}

fn safetensors(header: &str, elements: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; elements]].concat()
}

#[test]
fn lying_headers_are_refused() {
    let one = |shape: &str, offsets: &str| {
        format!(r#"{{"w": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}"#)
    };
    refused(&safetensors(&one("[2]", "[0, 8]"), 7), "damaged safetensors file");
    refused(&safetensors(&one("[2]", "[0, 8]"), 9), "damaged safetensors file");
    refused(&safetensors(&one("[3]", "[0, 8]"), 8), "damaged safetensors file");
    refused(&safetensors(&one("[4294967296, 4294967296]", "[0, 8]"), 8), "overflow");
    refused(&safetensors(&one("[2]", "[18446744073709551615, 8]"), 8), "damaged safetensors file");
    refused(&safetensors(&one(&format!("[{}1]", "1,".repeat(99)), "[0, 4]"), 4), "100 axes");
    refused(&safetensors(r#"{"w": {"dtype": "F99", "shape": [], "data_offsets": [0, 0]}}"#, 0), "F99");
    let two = r#"{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}"#;
    refused(&safetensors(two, 6), "invalid offset");
    let mut long = safetensors("{}", 0);
    long[..8].copy_from_slice(&90_000_000u64.to_le_bytes());
    refused(&long, "damaged safetensors file");
    refused(b"", "it is empty");
    refused(b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull");
    refused(b"{\"weight_map\": 3}", "no object \"weight_map\"");
    refused(&[b"{\"a\": ".repeat(100_000), b"1".to_vec()].concat(), "damaged index");
}

/// A PyTorch file with a pickle and one storage of eight bytes, which may claim another checksum.
fn torch(pickle: &[u8]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, content) in [("a/data.pkl", pickle), ("a/data/0", &[0; 8])] {
        zip.start_file(name, options).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// The instructions for a tensor of float32.
fn tensor(key: &str, offset: u8, shape: &[u64], strides: &[u64]) -> Vec<u8> {
    let numbers = |numbers: &[u64]| {
        let number = |number: &u64| [&[0x8a, 8][..], &number.to_le_bytes()].concat();
        [b"(".to_vec(), numbers.iter().flat_map(number).collect(), b"t".to_vec()].concat()
    };
    let mut code = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n".to_vec();
    code.extend([b'X', key.len() as u8, 0, 0, 0]);
    code.extend(key.as_bytes());
    code.extend(b"X\x03\0\0\0cpuK\x02tQK");
    code.push(offset);
    code.extend(numbers(shape));
    code.extend(numbers(strides));
    code.extend(b"\x89NtR.");
    code
}

#[test]
fn tensors_outside_of_their_storage_are_refused() {
    refused(&torch(&tensor("0", 0, &[3], &[1])), "past the 8 bytes of its storage \"0\"");
    refused(&torch(&tensor("0", 2, &[1], &[1])), "past the 8 bytes");
    refused(&torch(&tensor("0", 0, &[2], &[2])), "past the 8 bytes");
    refused(&torch(&tensor("0", 0, &[1 << 62, 8], &[0, 0])), "too large");
    refused(&torch(&tensor("0", 0, &[2, 2], &[1 << 62, 1 << 62])), "past the 8 bytes");
    refused(&torch(&tensor("0", 0, &[u64::MAX], &[1])), "a length or offset of -1");
    refused(&torch(&tensor("1", 0, &[1], &[1])), "its storage \"1\" is missing");
    refused(&torch(&tensor("../0", 0, &[1], &[1])), "is missing");
    // One element, many times: the file would become a million times larger.
    refused(&torch(&tensor("0", 0, &[1 << 15, 1 << 15], &[0, 0])), "too many for a file of");
    refused(&torch(b"cos\nsystem\nX\x02\0\0\0ls\x85R."), "os.system, which is refused");
}

#[test]
fn damage_inside_of_a_storage_is_noticed() {
    let mut content = torch(&tensor("0", 0, &[2], &[1]));
    let at = content.windows(8).position(|window| window == b"a/data/0").unwrap() + 8;
    content[at + 3] ^= 1;
    refused(&content, "its checksum is wrong");
    // PyTorch can be told to leave the checksums out; they are 0 then.
    let mut sum = Crc::new();
    sum.update(&[0; 8]);
    let sum = sum.sum().to_le_bytes();
    while let Some(at) = content.windows(4).position(|window| window == sum) {
        content[at..at + 4].fill(0);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &content).unwrap();
    assert!(open(file.path()).unwrap().read(0).is_ok());
}
