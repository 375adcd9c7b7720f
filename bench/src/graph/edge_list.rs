//! Edge lists as text, as the collection SNAP publishes them: a line has the ids of two nodes, lines that begin with `#` are
//! comments. The text may be compressed with gzip.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use crate::data::DataError;

/// The greatest length of a line, in bytes. A longer line shows that the file is not an edge list.
const MAX_LINE_BYTES: u64 = 4096;

/// The first bytes of a gzip stream.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads an edge list, one line after the other. A line that is not an edge is an error, after which the next lines can be
/// read; an error of the file itself ends the list.
pub struct EdgeList<R> {
    name: String,
    text: R,
    line: Vec<u8>,
    number: u64,
    ended: bool,
}

/// An edge list in a file.
pub type EdgeFile = EdgeList<Box<dyn BufRead + Send>>;

impl EdgeFile {
    /// Opens a file, and detects whether it is compressed.
    ///
    /// # Errors
    /// [`DataError`] if the file cannot be read.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let name = path.display().to_string();
        let failed = |error: std::io::Error| DataError(format!("cannot read {name}: {error}"));
        let mut file = BufReader::with_capacity(1 << 20, File::open(path).map_err(failed)?);
        let compressed = file.fill_buf().map_err(failed)?.starts_with(&GZIP);
        let text: Box<dyn BufRead + Send> = match compressed {
            true => Box::new(BufReader::with_capacity(1 << 20, MultiGzDecoder::new(file))),
            false => Box::new(file),
        };
        Ok(Self::new(name, text))
    }
}

impl<R: BufRead> EdgeList<R> {
    /// Reads a text. `name` is its name in messages.
    pub fn new(name: impl Into<String>, text: R) -> Self {
        Self {
            name: name.into(),
            text,
            line: Vec::new(),
            number: 0,
            ended: false,
        }
    }

    fn error(&self, why: &str) -> DataError {
        DataError(format!("{}:{}: {why}", self.name, self.number))
    }

    /// Reads the next line. Returns `None` at the end.
    fn next_line(&mut self) -> Option<Result<(), DataError>> {
        self.line.clear();
        self.number += 1;
        let mut part = self.text.by_ref().take(MAX_LINE_BYTES);
        match part.read_until(b'\n', &mut self.line) {
            Ok(0) => None,
            Ok(_) if self.line.len() as u64 == MAX_LINE_BYTES && !self.line.ends_with(b"\n") => {
                self.ended = true;
                Some(Err(self.error(
                    "the line is longer than 4096 bytes: the file is not an edge list",
                )))
            }
            Ok(_) => Some(Ok(())),
            Err(error) => {
                self.ended = true;
                Some(Err(
                    self.error(&format!("the file cannot be read further: {error}"))
                ))
            }
        }
    }

    /// Parses the line that was read. Returns `None` for a comment.
    fn parse(&self) -> Option<Result<(u64, u64), DataError>> {
        let line = self.line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            return None;
        }
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|it| !it.is_empty());
        let mut id = || {
            let word = std::str::from_utf8(words.next()?).ok()?;
            word.parse::<u64>().ok().filter(|id| *id < 1 << 63)
        };
        let edge = id().zip(id()).filter(|_| words.next().is_none());
        let shown: String = String::from_utf8_lossy(line).chars().take(40).collect();
        let wrong = || {
            self.error(&format!(
                "{shown:?} is not an edge: two ids from 0 to below 2^63, separated by a space or tab"
            ))
        };
        Some(edge.ok_or_else(wrong))
    }
}

impl<R: BufRead> Iterator for EdgeList<R> {
    type Item = Result<(u64, u64), DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.next_line()? {
                Ok(()) => {
                    if let Some(edge) = self.parse() {
                        return Some(edge);
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const TEXT: &str = "# Nodes: 4 Edges: 3\n0\t1\n\n1 2\r\n  3   0  \n";

    fn read(text: &[u8]) -> Vec<Result<(u64, u64), String>> {
        let list = EdgeList::new("x", text);
        list.map(|edge| edge.map_err(|error| error.to_string()))
            .collect()
    }

    #[test]
    fn comments_and_empty_lines_are_skipped() {
        assert_eq!(read(TEXT.as_bytes()), [Ok((0, 1)), Ok((1, 2)), Ok((3, 0))]);
        assert_eq!(read(b""), []);
        assert_eq!(read(b"7 8"), [Ok((7, 8))]);
    }

    #[test]
    fn each_wrong_line_is_an_error_with_its_number() {
        let found = read(b"1 2\n1\n1 2 3\n-1 2\n9223372036854775808 1\na b\n\xff 1\n3 4\n");
        assert_eq!((&found[0], &found[7]), (&Ok((1, 2)), &Ok((3, 4))));
        for (at, wrong) in found[1..7].iter().enumerate() {
            let wrong = wrong.as_ref().unwrap_err();
            assert!(wrong.starts_with(&format!("x:{}: ", at + 2)), "{wrong}");
            assert!(wrong.contains("is not an edge"), "{wrong}");
        }
        let long = read(&[b'1'; 10_000]);
        assert!(
            long.len() == 1 && long[0].as_ref().unwrap_err().contains("4096"),
            "{long:?}"
        );
    }

    #[test]
    fn compressed_files_are_detected_and_truncated_ones_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edges.txt.gz");
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let all: String = (0..5000).map(|id| format!("{id}\t{}\n", id * 7)).collect();
        writer.write_all(all.as_bytes()).unwrap();
        let bytes = writer.finish().unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let edges = EdgeFile::open(&path).unwrap();
        let edges: Vec<(u64, u64)> = edges.map(|edge| edge.unwrap()).collect();
        assert!(edges.iter().copied().eq((0..5000).map(|id| (id, id * 7))));
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let last = EdgeFile::open(&path).unwrap().last().unwrap();
        let why = last.unwrap_err().to_string();
        assert!(
            why.contains("edges.txt.gz:") && why.contains("cannot be read further"),
            "{why}"
        );
        let missing = EdgeFile::open(&dir.path().join("none")).err().unwrap();
        assert!(missing.to_string().contains("none"), "{missing}");
    }
}
